"""Observers see each event once and in order; a plain pass has none of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_nanguard.tracing.calls.call_stack import CallStack
from megatron_nanguard.tracing.places.current_place import CurrentPlace
from megatron_nanguard.tracing.places.external_tensors import ExternalTensors
from megatron_nanguard.tracing.recording.event_log import EventObserver, StartedCall
from megatron_nanguard.tracing.recording.events import TracedEvent
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import NonfiniteFlags, Slot
from megatron_nanguard.tracing.recording.recorder import EventRecorder
from tests.unit.tracing.steps import Model, Schedule, batches


def unshielded(function: Callable[..., Any], *args: object) -> Any:
    """Call without the shield of a tracer."""
    return function(*args)


class Diary(EventObserver):
    """Notes every call that it gets."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []

    def before_operator(self, number: int, call: StartedCall) -> None:
        self.entries.append(("before", number, call.event.operator))

    def after_operator(self, call: StartedCall, written: Collection[Tensor], result: Any) -> None:
        self.entries.append(("after", call.event.operator, len(written)))

    def wrote(self, event: TracedEvent, writer: Writer, tensor: Tensor, slot: Slot | None) -> None:
        self.entries.append(("wrote", *writer, event.operator))

    def finish(self) -> None:
        self.entries.append(("finish",))


class Calls:
    """Keeps numbers, operators and results of the calls that it observes."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, str]] = []
        self.results: list[Any] = []

    def before(self, event: int, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.begun.append((event, func._schema.name))

    def after(self, out: Any) -> None:
        self.results.append(out)


def test_an_observer_sees_reads_before_the_operator_and_writes_before_its_end() -> None:
    diary = Diary()
    calls = CallStack({}, unshielded)
    here = CurrentPlace(calls, {}, None, lambda node: None, unshielded)
    recorder = EventRecorder(here, calls, ExternalTensors([], {}, {}), NonfiniteFlags(), (diary,))
    add, args = torch.ops.aten.add.Tensor, (torch.ones(2), torch.ones(2))

    call = recorder.before(add, args, {})
    assert call is not None
    recorder.after(call, add(*args))
    recorder.finish()

    assert diary.entries == [
        ("wrote", 0, 0, "tensor (2,) float32"),
        ("wrote", 1, 0, "tensor (2,) float32"),
        ("before", 2, "add.Tensor"),
        ("wrote", 2, 0, "add.Tensor"),
        ("after", "add.Tensor", 1),
        ("finish",),
    ]


def test_a_call_observer_gets_the_number_that_the_event_has_afterwards() -> None:
    calls = Calls()
    schedule = Schedule(Model(), call_observer=calls)
    schedule.run(batches())
    events = schedule.tracer._recorder.log.events

    assert calls.begun
    assert len(calls.begun) == len(calls.results)
    for number, name in calls.begun:
        assert events[number].operator.partition(".")[0] == name.removeprefix("aten::")


@pytest.mark.parametrize("options", [{}, {"probed_events": frozenset()}])
def test_a_plain_pass_has_no_observer(options: dict[str, Any]) -> None:
    assert Schedule(Model(), **options).tracer._recorder.log.observers == ()
