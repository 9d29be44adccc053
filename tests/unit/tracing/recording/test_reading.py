"""Writers of the tensors that an event reads, and events for memory that no event has written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_nanguard.tracing.calls.call_stack import CallStack
from megatron_nanguard.tracing.places.current_place import CurrentPlace
from megatron_nanguard.tracing.places.external_tensors import ExternalTensors
from megatron_nanguard.tracing.recording.event_log import EventLog
from megatron_nanguard.tracing.recording.events import EventKind, TracedEvent
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import NAN, NonfiniteFlags
from megatron_nanguard.tracing.recording.reading import PendingMessages, TensorReader


def unshielded(function: Callable[..., Any], *args: object) -> Any:
    """Call without the shield of a tracer."""
    return function(*args)


class Pass:
    """A pass in which the test itself adds the events of operators."""

    def __init__(self) -> None:
        self.here = CurrentPlace(CallStack({}, unshielded), {}, None, lambda node: None, unshielded)
        self.log = EventLog(NonfiniteFlags(), ())
        self.pending = PendingMessages(self.log, self.here)
        self.reader = TensorReader(self.log, self.pending, self.here, ExternalTensors([], {}, {}))

    def wrote(self, tensor: Tensor, kind: EventKind = EventKind.OPERATOR) -> Writer:
        event = self.log.add(TracedEvent("planted", kind, self.here.place(), []))
        is_flagged = kind is EventKind.OPERATOR
        return self.log.wrote(event, tensor, self.log.flags.put(tensor) if is_flagged else None)

    def bits(self, writer: Writer) -> int:
        self.log.flags.read()
        return self.log.flags.bits(self.log.events[writer.event].outputs[writer.output].slot)


def test_a_tensor_from_before_the_trace_becomes_one_event() -> None:
    one, tensor = Pass(), torch.ones(2)
    assert one.reader.read(tensor).writers == one.reader.read(tensor[:1]).writers == (Writer(0, 0),)
    assert [(event.kind, event.operator) for event in one.log.events] == [(EventKind.EXTERNAL, "tensor (2,) float32")]


def test_only_the_part_that_no_event_wrote_is_external() -> None:
    one, tensor = Pass(), torch.tensor([1.0, 1.0, 1.0, 1.0, math.nan, 2.0])
    written = one.wrote(tensor[:4])
    read = one.reader.read(tensor)
    assert read.writers == (written, Writer(1, 0))
    assert one.log.events[1].outputs[0].shape == (2,)
    assert (one.bits(written), one.bits(read.writers[1])) == (0, NAN)


def test_a_part_of_what_was_written_has_a_flag_of_its_own() -> None:
    one, tensor = Pass(), torch.tensor([1.0, math.nan])
    one.wrote(tensor)
    healthy, whole = one.reader.read(tensor[:1]), one.reader.read(tensor)
    one.log.flags.read()
    assert healthy.seen.slot is not None
    assert one.log.flags.bits(healthy.seen.slot) == 0
    assert whole.seen.slot is None


def test_memory_that_is_read_before_it_is_written_becomes_an_event() -> None:
    one, tensor = Pass(), torch.ones(4)
    one.wrote(tensor, EventKind.EMPTY)
    half = one.wrote(tensor[:2])
    assert one.reader.read(tensor).writers == (half, Writer(2, 0))
    event = one.log.events[2]
    assert (event.kind, event.reads[0].writers, event.first_used is not None) == (EventKind.FILLED, (half,), True)


def test_a_message_is_looked_at_when_it_is_read_and_not_before() -> None:
    one, buffer = Pass(), torch.zeros(2)
    writer = one.wrote(buffer, EventKind.MESSAGE)
    one.pending.start(writer, buffer, None)
    assert one.reader.is_under_way(buffer)
    buffer[0] = math.nan
    one.reader.read(buffer)
    buffer[0] = 0.0
    assert not one.reader.is_under_way(buffer)
    assert one.bits(writer) == NAN
    assert one.log.events[0].first_used is not None


def test_a_message_that_is_never_read_is_looked_at_at_the_end() -> None:
    one, buffer = Pass(), torch.full((2,), math.nan)
    writer = one.wrote(buffer, EventKind.MESSAGE)
    one.pending.start(writer, buffer, None)
    one.pending.finish()
    assert (one.bits(writer), one.log.events[0].first_used, len(one.pending)) == (NAN, None, 0)


@pytest.mark.parametrize(
    ("tensor", "is_number"),
    [
        (torch.tensor(math.nan), True),
        (torch.tensor([math.nan]), False),
        (torch.tensor(3), False),
        (torch.tensor(1j), False),
    ],
)
def test_a_plain_number_in_the_call(tensor: Any, is_number: bool) -> None:
    assert Pass().reader.is_number(tensor) is is_number


def test_a_scalar_that_an_event_wrote_is_no_plain_number() -> None:
    one, tensor = Pass(), torch.tensor(1.0)
    one.wrote(tensor)
    assert not one.reader.is_number(tensor)
