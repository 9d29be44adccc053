"""Sources that answer, hang and fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from megatron_nanguard.health.polling import Poll, SourceAnswer
from megatron_nanguard.records.machine.health import HealthReading
from tests.unit.conftest import Log

READING = HealthReading("a", "device", {"errors": 1}, {})


class Scripted:
    """A source that does what a test wants."""

    def __init__(self, name: str, read: Callable[[], SourceAnswer]) -> None:
        self.name, self.read = name, read


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Set at the end of the test, so that no thread outlives it."""
    event = threading.Event()
    yield event
    event.set()


def test_every_source_has_its_own_answer() -> None:
    poll = Poll(
        [Scripted("a", lambda: SourceAnswer((READING,))), Scripted("b", lambda: SourceAnswer(problem="b is not there"))]
    )
    assert poll.collect() == {"a": SourceAnswer((READING,)), "b": SourceAnswer(problem="b is not there")}


def test_a_source_that_hangs_becomes_a_problem_after_the_time_limit(stuck: threading.Event) -> None:
    def hang() -> SourceAnswer:
        stuck.wait()
        return SourceAnswer()

    began = time.monotonic()
    poll = Poll([Scripted("NVML", hang), Scripted("a", lambda: SourceAnswer((READING,)))], seconds=0.3)
    assert time.monotonic() - began < 0.2
    answers = poll.collect()
    assert 0.3 <= time.monotonic() - began < 2.0
    assert answers == {"NVML": SourceAnswer(problem="NVML: no answer after 0 s"), "a": SourceAnswer((READING,))}


def test_the_caller_can_stop_waiting_before_the_time_limit(stuck: threading.Event) -> None:
    def hang() -> SourceAnswer:
        stuck.wait()
        return SourceAnswer()

    poll, began = Poll([Scripted("NVML", hang)], seconds=30.0), time.monotonic()
    poll.collect(began + 0.1)
    assert time.monotonic() - began < 2.0


def test_a_source_that_hangs_is_not_asked_again_until_it_has_answered(stuck: threading.Event) -> None:
    asked = []

    def hang() -> SourceAnswer:
        asked.append(1)
        stuck.wait()
        return SourceAnswer()

    sources = [Scripted("NVML", hang), Scripted("a", lambda: SourceAnswer((READING,)))]
    poll = Poll(sources, seconds=30.0)
    assert poll.hanging() == {}
    poll.collect(0.0)
    again = Poll(sources, hanging=poll.hanging())
    assert again.collect() == {
        "a": SourceAnswer((READING,)),
        "NVML": SourceAnswer(problem="NVML: has hung since an earlier poll"),
    }
    assert again.hanging().keys() == {"NVML"}
    assert len(asked) == 1

    stuck.set()
    poll.collect()
    assert again.hanging() == {}
    assert Poll(sources, hanging=again.hanging()).collect()["NVML"] == SourceAnswer()
    assert len(asked) == 2


def test_a_source_past_its_time_limit_hangs_even_if_nothing_was_collected(stuck: threading.Event) -> None:
    def hang() -> SourceAnswer:
        stuck.wait()
        return SourceAnswer()

    poll = Poll([Scripted("NVML", hang)], seconds=0.1)
    time.sleep(0.2)
    assert poll.hanging().keys() == {"NVML"}


def test_an_exception_in_a_source_is_logged_and_becomes_a_problem(log: Log) -> None:
    def fail() -> SourceAnswer:
        raise RuntimeError("no such field")

    poll = Poll([Scripted("npu-smi", fail)])
    fault = "reading of the hardware, npu-smi: RuntimeError: no such field"
    assert poll.collect() == {"npu-smi": SourceAnswer(problem=fault)}
    assert len(log.messages) == 1
