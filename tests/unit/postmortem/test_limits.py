"""The file of a rank stays as small as ten thousand ranks on one file system need it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from megatron_nanguard.postmortem.limits import (
    BAD_BYTES,
    CLEAN_BYTES,
    INFECTED_BYTES,
    cut_health,
    cut_to_limit,
    without_zeros,
)
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.machine.health import HealthReading
from megatron_nanguard.records.phrase import Phrasing, phrase
from megatron_nanguard.records.postmortem import BadParameter, LocalGradients, Microbatch, RankSets, ReducedState
from tests.unit.factories import FINITE_LOCAL, NO_FLAGS, REPLICA_0, bad_parameter, demo_postmortem, postmortem
from tests.unit.hardware import LOST_DATA, health

MANY_RANKS = RankSets((0, 1, 4, 5), (2, 3, 6, 7), tuple(range(8, 16384)))


def parameters(number: int) -> tuple[BadParameter, ...]:
    return tuple(bad_parameter(f"decoder.layers.{index}.mlp.linear_fc1.weight") for index in range(number))


def bad_rank(number: int, **changes: Any) -> Any:
    local = LocalGradients(math.nan, parameters(number), {f"decoder.layers.{layer}": 8 for layer in range(200)}, 0)
    reduced = ReducedState(math.nan, 4, parameters(number), 0)
    return postmortem(5, local=local, reduced=reduced, flags=replace(NO_FLAGS, local=True, reduced=True), **changes)


def test_a_postmortem_within_the_limit_is_unchanged() -> None:
    whole = postmortem(0)

    assert cut_to_limit(whole) is whole


def test_the_file_of_a_bad_rank_is_cut_and_the_cut_is_counted() -> None:
    cut = cut_to_limit(bad_rank(5000))

    assert len(to_json(cut)) <= BAD_BYTES
    assert len(cut.local.parameters) == 1024
    assert cut.local.truncated == 3976
    assert len(cut.reduced.parameters) == 1024
    assert cut.reduced.truncated == 3976


def test_a_cut_adds_to_the_number_that_was_cut_before() -> None:
    once = bad_rank(2000)
    once = replace(once, local=replace(once.local, truncated=7))

    assert cut_to_limit(once).local.truncated == 7 + 2000 - 1024


def test_the_first_parameters_are_the_ones_kept() -> None:
    cut = cut_to_limit(bad_rank(5000))

    assert cut.local.parameters[0].name == "decoder.layers.0.mlp.linear_fc1.weight"
    assert cut.local.parameters[-1].name == "decoder.layers.1023.mlp.linear_fc1.weight"


def test_a_clean_rank_of_a_large_world_writes_at_most_4_kib() -> None:
    microbatches = tuple(Microbatch(index, 10.0, 4096) for index in range(512))

    cut = cut_to_limit(postmortem(7, ranks=MANY_RANKS, microbatches=microbatches))

    assert len(to_json(cut)) <= CLEAN_BYTES
    assert cut.ranks is None
    assert cut.groups == (replace(REPLICA_0, ranks=()),)
    assert "rank sets left out to keep this file small: see incident.json" in cut.notes
    assert "496 micro-batches left out to keep this file small" in cut.notes


def test_micro_batches_with_a_bad_loss_are_kept_first() -> None:
    microbatches = tuple(Microbatch(index, math.nan if index == 300 else 10.0, 4096) for index in range(512))

    kept = [microbatch.index for microbatch in cut_to_limit(postmortem(7, microbatches=microbatches)).microbatches]

    assert kept == [*range(len(kept) - 1), 300]


def test_an_infected_rank_of_a_large_world_writes_at_most_32_kib() -> None:
    infected = replace(bad_rank(400, ranks=MANY_RANKS), flags=replace(NO_FLAGS, reduced=True))

    cut = cut_to_limit(infected)

    assert len(to_json(cut)) <= INFECTED_BYTES
    assert len(cut.reduced.parameters) == 16
    assert cut.ranks is None


@pytest.mark.parametrize("rank", range(8))
def test_the_files_of_the_demo_are_not_cut(rank: int) -> None:
    assert cut_to_limit(demo_postmortem(rank)) == demo_postmortem(rank)


def layers(number: int) -> dict[str, float | None]:
    return {f"decoder.layers.{layer}": 0.123456 for layer in range(number)}


def test_a_clean_rank_with_forty_layers_writes_at_most_4_kib() -> None:
    microbatches = tuple(Microbatch(index, 10.0, 4096) for index in range(16))
    local = replace(FINITE_LOCAL, norm_by_layer=layers(40))

    cut = cut_to_limit(postmortem(7, ranks=MANY_RANKS, microbatches=microbatches, local=local))

    assert len(to_json(cut)) <= CLEAN_BYTES
    assert list(cut.local.norm_by_layer) == [f"decoder.layers.{layer}" for layer in range(0, 40, 2)]


def test_a_layer_with_a_bad_norm_is_never_cut() -> None:
    norms = {**layers(3000), "decoder.layers.1": math.nan}
    local = replace(bad_rank(5000).local, norm_by_layer=norms)

    kept = cut_to_limit(replace(bad_rank(5000), local=local)).local.norm_by_layer

    assert list(kept)[:3] == ["decoder.layers.0", "decoder.layers.1", "decoder.layers.3"]
    assert len(kept) == 1001


def test_phrase_templates_are_left_out_first() -> None:
    notes = (phrase("rank {rank}: {note}", rank=5, note="x"),)

    assert cut_to_limit(bad_rank(1, notes=notes)).phrases == {
        "rank 5: x": Phrasing("rank {rank}: {note}", {"rank": "5", "note": "x"})
    }
    assert cut_to_limit(postmortem(0, notes=notes)).phrases == {}
    long = cut_to_limit(bad_rank(1, notes=(phrase("rank {rank}: {note}", rank=5, note="x" * BAD_BYTES),)))
    assert long.phrases == {}


TEMPERATURE = HealthReading("nvml", "device", {}, {"temperature": "61 C"})


def test_zero_error_counters_are_dropped_first() -> None:
    found = without_zeros(health(5))
    assert found is not None
    assert found.readings[0].counters == {"ECC errors, corrected, volatile": 4}
    assert without_zeros(None) is None


def test_readings_are_dropped_before_changes() -> None:
    whole = health(5, *[LOST_DATA] * 20)
    short = cut_health(whole, 4)
    assert cut_health(whole, 1024) is whole
    assert short is not None
    assert (len(short.differences), short.readings) == (8, ())
    assert cut_health(None, 4) is None


def test_a_device_without_changes_or_problems_is_dropped() -> None:
    assert cut_health(health(5), 4) is None
    hung = health(5, problems=("NVML: no answer after 10 s",))
    assert cut_health(hung, 4) == replace(hung, readings=())


@pytest.mark.parametrize(("num_layers", "readings"), [(30, (TEMPERATURE,)), (41, None)])
def test_a_clean_rank_stays_small_and_keeps_the_norms_of_its_layers(
    num_layers: int, readings: tuple[HealthReading, ...] | None
) -> None:
    layers = {f"decoder.layers.{layer}": 0.123456 for layer in range(num_layers)}
    local = LocalGradients(1.5, (), {}, 0, norm_by_layer=layers)
    reading = replace(TEMPERATURE, counters={f"errors of the kind number {number}": 0 for number in range(20)})
    cut = cut_to_limit(postmortem(7, local=local, health=health(7, readings=(reading,))))
    assert len(to_json(cut)) <= CLEAN_BYTES
    assert cut.local.norm_by_layer == layers
    assert (cut.health.readings if cut.health else None) == readings
