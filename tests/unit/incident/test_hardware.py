"""What the hardware says goes into the files of an incident, and never holds it up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_nanguard.health import polling
from megatron_nanguard.health.health_watch import HealthWatch
from megatron_nanguard.health.polling import SourceAnswer
from megatron_nanguard.postmortem.loading import load_incident
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.machine.health import HealthDifference, HealthReading
from tests.unit.incident.test_stages import SKIP, Watch, handle, run_in


class Card:
    """A source that reports one more error each time it is asked."""

    name = "npu-smi"

    def __init__(self) -> None:
        self.asked = 0

    def read(self) -> SourceAnswer:
        self.asked += 1
        return SourceAnswer((HealthReading("npu-smi", "device", {"Double-bit Error Count": self.asked}, {}),))


class Hung:
    """A source that never answers."""

    name = "NVML"

    def __init__(self, released: threading.Event) -> None:
        self._released = released

    def read(self) -> SourceAnswer:
        self._released.wait()
        return SourceAnswer()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Set at the end of the test, so that no thread outlives it."""
    event = threading.Event()
    yield event
    event.set()


def incident_with(health: HealthWatch | None, watch: Watch, path: Path) -> Incident:
    run = run_in(path)
    run.health = health
    assert handle(watch(), run) == SKIP
    assert run.shield.fault is None
    return load_incident(path).incident


def test_a_hardware_error_since_the_start_is_in_the_incident_and_its_cause(watch: Watch, tmp_path: Path) -> None:
    found = incident_with(HealthWatch(0, "npu:0, 4", "", [Card()]), watch, tmp_path)
    (health,) = found.health
    assert (health.rank, health.device) == (0, "npu:0, 4")
    assert health.differences == (HealthDifference("device", "Double-bit Error Count", "1", "2", "uncorrectable"),)
    assert found.causes[0].cause == "hardware_transient"


def test_without_a_watch_the_incident_has_no_hardware(watch: Watch, tmp_path: Path) -> None:
    found = incident_with(None, watch, tmp_path)
    assert found.health == ()
    assert "hardware_transient" not in [cause.cause for cause in found.causes]


def test_a_poll_that_fails_is_no_fault_of_the_guard(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = HealthWatch(0, "npu:0, 4", "", [Card()])

    def no_thread(self: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(HealthWatch, "poll", no_thread)
    found = incident_with(health, watch, tmp_path)
    assert found.health == ()
    assert found.ranks.bad_before == (0,)


def test_a_driver_that_hangs_costs_seconds_and_a_line(
    watch: Watch, tmp_path: Path, released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling.Poll.__init__, "__defaults__", (3.0,))
    began = time.monotonic()
    found = incident_with(HealthWatch(0, "cuda:0", "", [Hung(released)]), watch, tmp_path)
    assert time.monotonic() - began < 10.0
    (health,) = found.health
    assert health.problems[0].startswith("NVML: no answer after ")
    assert (health.differences, health.readings) == ((), ())
