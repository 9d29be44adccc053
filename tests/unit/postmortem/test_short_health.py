"""The hardware of a rank gives way to what the file must hold, and what changed goes last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_nanguard.postmortem.limits import CLEAN_BYTES, fit
from megatron_nanguard.postmortem.short_health import cut_health, without_zeros
from megatron_nanguard.records.health import HealthReading
from megatron_nanguard.records.json_form import to_json
from megatron_nanguard.records.postmortem import LocalGradients
from tests.unit.factories import postmortem
from tests.unit.hardware import LOST_DATA, health

TEMPERATURE = HealthReading("nvml", "device", {}, {"temperature": "61 C"})


def test_errors_that_never_happened_go_first() -> None:
    found = without_zeros(health(5))
    assert found is not None
    assert found.readings[0].counters == {"ECC errors, corrected, volatile": 4}
    assert without_zeros(None) is None


def test_readings_go_before_changes() -> None:
    told = health(5, *[LOST_DATA] * 20)
    short = cut_health(told, 4)
    assert cut_health(told, 1024) is told
    assert short is not None
    assert (len(short.differences), short.readings) == (8, ())
    assert cut_health(None, 4) is None


def test_a_device_with_nothing_new_goes_altogether() -> None:
    assert cut_health(health(5), 4) is None
    hung = health(5, problems=("NVML: no answer after 10 s",))
    assert cut_health(hung, 4) == replace(hung, readings=())


@pytest.mark.parametrize(("num_layers", "readings"), [(30, (TEMPERATURE,)), (41, None)])
def test_a_clean_rank_stays_small_and_keeps_the_picture_of_its_depth(
    num_layers: int, readings: tuple[HealthReading, ...] | None
) -> None:
    layers = {f"decoder.layers.{layer}": 0.123456 for layer in range(num_layers)}
    local = LocalGradients(1.5, (), {}, 0, norm_by_layer=layers)
    reading = replace(TEMPERATURE, counters={f"errors of the kind number {number}": 0 for number in range(20)})
    cut = fit(postmortem(7, local=local, health=health(7, readings=(reading,))))
    assert len(to_json(cut)) <= CLEAN_BYTES
    assert cut.local.norm_by_layer == layers
    assert (cut.health.readings if cut.health else None) == readings
