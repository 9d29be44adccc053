"""What all sources of events share: the events of the pass, the writers of all memory, and the observers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from torch import Tensor
from torch._ops import OperatorBase

from megatron_nanguard.tracing.recording.collective_calls import CollectiveCall
from megatron_nanguard.tracing.recording.events import EventKind, Region, TracedEvent, TracedOutput
from megatron_nanguard.tracing.recording.lineage import Lineage, Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import NonfiniteFlags, Slot
from megatron_nanguard.tracing.recording.operators import NamedTensor, Operator

_MADE: Final = (EventKind.OPERATOR, EventKind.MESSAGE, EventKind.FILLED)


class StartedCall(NamedTuple):
    """An operator that is about to run.

    Attributes:
        operator: what its schema says.
        func: the operator itself.
        args: its arguments by position.
        kwargs: its arguments by name.
        event: becomes the next event of the pass when the operator has run.
        read: the tensors it reads; those of a message are in `collective`.
        collective: what the operator sends and receives; None when it is no message.
    """

    operator: Operator
    func: OperatorBase
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    event: TracedEvent
    read: Sequence[NamedTensor] = ()
    collective: CollectiveCall | None = None


class EventObserver:
    """Looks at events while they are recorded. A subclass overrides the methods it needs; the others do nothing.

    The tracer does not trace operators that an observer runs.
    """

    def before_operator(self, number: int, call: StartedCall) -> None:
        """Look at an operator that is about to run as the event of this number."""

    def after_operator(self, call: StartedCall, written: Collection[Tensor], result: object) -> None:
        """Look at an operator that has run.

        Args:
            call: as `before_operator` got it.
            written: the tensors it returned or changed in place.
            result: what it returned.
        """

    def before_message(self, number: int, call: StartedCall) -> None:
        """Look at a message that is about to start as the event of this number."""

    def wrote(self, event: TracedEvent, writer: Writer, tensor: Tensor, slot: Slot | None) -> None:
        """Look at a tensor that an event of any kind wrote."""

    def arrived(self, event: TracedEvent, writer: Writer, tensor: Tensor) -> None:
        """Look at a tensor that a message has brought, when it is read first."""

    def finish(self) -> None:
        """Fetch from the device what was noted there, at the end of the pass."""


class EventLog:
    """Events in the order of execution, with the last writers of all memory.

    Attributes:
        events: of the pass so far.
        flags: whether each tensor held NaN or Inf.
        lineage: which events wrote the bytes of each storage.
        observers: who looks at each event; empty in a plain traced pass.
        region: the innermost call that runs.
        is_looking: the tracer looks at what a region got or made; what it sees so was not made by the region around.
        output_names: names of outputs, such as "grad of q".
    """

    def __init__(self, flags: NonfiniteFlags, observers: tuple[EventObserver, ...]) -> None:
        self.events: list[TracedEvent] = []
        self.flags, self.observers = flags, observers
        self.lineage = Lineage()
        self.region = Region("step")
        self.is_looking = False
        self.output_names: dict[Writer, str] = {}

    @property
    def next_number(self) -> int:
        """Number that the next event will have."""
        return len(self.events)

    def add(self, event: TracedEvent) -> TracedEvent:
        """Append an event; until the next one is added, `wrote` may be called for it."""
        event.region = event.region or self.region
        self.events.append(event)
        return event

    def wrote(self, event: TracedEvent, tensor: Tensor, slot: Slot | None) -> Writer:
        """Note that the newest event wrote the tensor.

        Args:
            event: the newest one.
            tensor: what it wrote.
            slot: flag of the tensor; None when it has none, or none yet.
        """
        number = len(self.events) - 1
        assert self.events[number] is event
        writer = Writer(number, len(event.outputs))
        event.outputs.append(TracedOutput.of(tensor, slot))
        self.lineage.write(tensor, writer)
        if event.kind in _MADE and not self.is_looking:
            self.hand_on((writer,), event.region or self.region, in_backward=event.place.phase == "backward")
        for observer in self.observers:
            observer.wrote(event, writer, tensor, slot)
        return writer

    def hand_on(self, writers: Iterable[Writer], region: Region, *, in_backward: bool) -> None:
        """Note what was made directly in a region. From one node to the next the engine carries the gradients."""
        if region.part != "step" or not in_backward:
            region.made.extend(writers)
