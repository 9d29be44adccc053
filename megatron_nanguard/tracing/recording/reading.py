"""What an event reads: the events that wrote each tensor. Memory that none of them wrote becomes an event too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from torch import Tensor
from torch.distributed import Work

from megatron_nanguard.tracing.places.current_place import CurrentPlace
from megatron_nanguard.tracing.places.external_tensors import ExternalTensors, ModelMemory, describe
from megatron_nanguard.tracing.places.step_place import StepPlace
from megatron_nanguard.tracing.recording.event_log import EventLog
from megatron_nanguard.tracing.recording.events import EventKind, Region, TracedEvent, TracedOutput, TracedRead
from megatron_nanguard.tracing.recording.lineage import Range, Writer, memory_of
from megatron_nanguard.tracing.recording.nonfinite_flags import can_be_bad
from megatron_nanguard.tracing.recording.operators import NamedTensor

_UNSEEN_WRITE: Final = "unseen write"


class PendingMessages:
    """Buffers of messages that may still be under way.

    A communication operator only starts the work. By the time a buffer is read the message has arrived, so what it
    brought is looked at then.
    """

    def __init__(self, log: EventLog, here: CurrentPlace) -> None:
        self._log, self._here = log, here
        self._buffers: dict[Writer, Tensor] = {}
        self._works: dict[Writer, Work] = {}
        self._waited: set[Work] = set()

    def __len__(self) -> int:
        """How many buffers may still be written to."""
        return len(self._buffers)

    def __contains__(self, writer: Writer) -> bool:
        """Whether this message may be under way."""
        return writer in self._buffers

    @contextmanager
    def noting_waits(self) -> Iterator[None]:
        """Note which messages the step waits for.

        An accelerator calls a message completed only when its kernel is over; what the step runs after `wait` reads
        what has arrived all the same. `wait` is a function in C, so the class gets another one meanwhile.
        """
        original = Work.wait

        def wait(work: Work, *args: Any, **kwargs: Any) -> bool:
            is_done = original(work, *args, **kwargs)
            self._waited.add(work)
            return is_done

        Work.wait = wait  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            Work.wait = original  # type: ignore[method-assign]

    def start(self, writer: Writer, buffer: Tensor, work: Work | None) -> None:
        """Keep the buffer until it is read.

        Args:
            writer: of the buffer.
            buffer: that the message fills.
            work: the message, where torch gives it.
        """
        self._buffers[writer] = buffer.detach()
        if work is not None:
            self._works[writer] = work

    def since(self, event: int) -> tuple[list[Writer], list[Writer]]:
        """Return the messages from this event on that are known to have arrived, and the others."""
        arrived: list[Writer] = []
        others: list[Writer] = []
        for writer in self._buffers:
            if writer.event >= event:
                work = self._works.get(writer)
                is_known = work is not None and (work in self._waited or work.is_completed())
                (arrived if is_known else others).append(writer)
        return arrived, others

    def buffer(self, writer: Writer) -> Tensor:
        """Return the buffer of a message that may be under way."""
        return self._buffers[writer]

    def arrive(self, writers: Iterable[Writer], *, is_read: bool = True) -> None:
        """Look at the buffers that these writers fill, and forget them.

        Args:
            writers: of a tensor that is about to be read; only those of messages under way matter.
            is_read: False at the end of the pass.
        """
        if not self._buffers:
            return
        for writer in writers:
            buffer = self._buffers.pop(writer, None)
            work = self._works.pop(writer, None)
            if work is not None:
                self._waited.discard(work)
            if buffer is not None:
                self._look(writer, buffer, is_read)

    def finish(self) -> None:
        """Look at the buffers that were never read."""
        self.arrive(list(self._buffers), is_read=False)

    def _look(self, writer: Writer, buffer: Tensor, is_read: bool) -> None:
        event = self._log.events[writer.event]
        if memory_of(buffer) is None:  # It was freed since, as sharded data parallelism does with gathered weights.
            return
        event.outputs[writer.output] = TracedOutput.of(buffer, self._log.flags.put(buffer))
        if event.first_used is None and is_read:
            event.first_used = self._here.place()
        for observer in self._log.observers:
            observer.arrived(event, writer, buffer)


class TensorReader:
    """Finds the writers of tensors that an event reads."""

    def __init__(self, log: EventLog, pending: PendingMessages, here: CurrentPlace, external: ExternalTensors) -> None:
        self._log, self._pending, self._here, self._external = log, pending, here, external

    def read_all(self, named: Iterable[NamedTensor]) -> list[TracedRead]:
        """Read the tensors that can hold NaN or Inf."""
        return [self.read(tensor, name, index) for name, index, tensor in named if can_be_bad(tensor)]

    def read(self, tensor: Tensor, name: str = "", column: int | None = None) -> TracedRead:
        """Find who wrote a tensor that is about to be read.

        Messages that have brought it are looked at first. Memory that no event has written gets an event of its own.

        Args:
            tensor: that can hold NaN or Inf.
            name: of the argument.
            column: the only output that the tensor can have gone into; None when it can have gone into all.
        """
        events = self._log.events
        writers, unknown = self._log.lineage.read(tensor)
        self._pending.arrive(writers)
        if writers and events[writers[-1].event].kind is EventKind.EMPTY:
            writers = [*writers[:-1], self._filled(tensor, writers)]
        if unknown and (not writers or tensor.is_contiguous()):
            writers.append(self._from_before_trace(tensor, unknown, is_part=bool(writers)))
        is_part = any(self._numel(writer) > tensor.numel() for writer in writers)
        slot = self._log.flags.put(tensor) if is_part else None
        return TracedRead(name, column, tuple(writers), TracedOutput.of(tensor, slot))

    def writers(self, tensor: Tensor) -> tuple[Writer, ...]:
        """Who wrote a tensor; empty for a tensor that can hold neither NaN nor Inf."""
        return self.read(tensor).writers if can_be_bad(tensor) else ()

    def read_untraced(self, named: Iterable[NamedTensor]) -> None:
        """Note what a step reads that is not traced, so that the buffers of arrived messages are not kept alive."""
        if self._pending:
            for _, _, tensor in named:
                self._pending.arrive(self._log.lineage.read(tensor)[0])

    def is_filled(self, tensor: Tensor) -> bool:
        """Whether an event was seen writing all of the tensor, or it is no memory that an ``empty`` has returned."""
        writers, _ = self._log.lineage.read(tensor)
        return not writers or self._log.events[writers[-1].event].kind is not EventKind.EMPTY

    def read_arguments(self, region: Region | None) -> None:
        """Read what went into a module, because something was written in it unseen.

        Memory that nothing was seen filling is left out: the unseen write may be what fills it.
        """
        if region is None or region.arguments is None:
            return
        arguments, region.arguments = region.arguments, None
        for name, tensor in arguments():
            memory = memory_of(tensor)
            if memory is not None and can_be_bad(memory) and self.is_filled(memory):
                region.reads.append(self.went_in(memory, name))

    def went_in(self, tensor: Tensor, name: str) -> TracedRead:
        """Read a tensor that went into a region; a message that is still bringing it is left to arrive."""
        if not self.is_under_way(tensor):
            return self.read(tensor, name)
        return TracedRead(name, None, tuple(self._log.lineage.read(tensor)[0]), TracedOutput.of(tensor, None))

    def is_under_way(self, tensor: Tensor) -> bool:
        """Whether a message that nothing has waited for may be writing into the tensor."""
        return len(self._pending) > 0 and any(writer in self._pending for writer in self._log.lineage.read(tensor)[0])

    def is_number(self, tensor: Tensor) -> bool:
        """Whether torch made the tensor from a plain number, such as the one in `x[0] = nan`.

        Such a tensor counts as an argument of the operator, not as a tensor from before the trace.
        """
        return (
            tensor.dim() == 0
            and tensor.device.type == "cpu"
            and can_be_bad(tensor)
            and not tensor.is_complex()
            and not self._log.lineage.is_known(tensor)
            and self._external.owner(tensor) is None
        )

    def _filled(self, tensor: Tensor, writers: Sequence[Writer]) -> Writer:
        """Add an event for memory from an `empty` that is read, although no event has written all of it.

        Either something wrote it unseen, such as a fused kernel, or nothing did.
        """
        empty = self._log.events[writers[-1].event]
        seen = TracedOutput.of(tensor, None)
        reads = [TracedRead("written by an operator", None, tuple(writers[:-1]), seen)] if len(writers) > 1 else []
        self.read_arguments(empty.region)
        event = TracedEvent(
            _UNSEEN_WRITE, EventKind.FILLED, empty.place, reads, first_used=self._here.place(), region=empty.region
        )
        return self._log.wrote(self._log.add(event), tensor, self._log.flags.put(tensor))

    def _from_before_trace(self, tensor: Tensor, unknown: Sequence[Range], is_part: bool) -> Writer:
        """Add an event for a tensor from before the trace, such as a parameter or data.

        If events have written some of the tensor, only the largest part that none has written is looked at. Otherwise
        their bad values would count as values from before the trace. In a compiled graph it is a buffer of that graph.
        """
        part = _largest(tensor, unknown) if is_part else tensor
        owned = self._external.owner(part)
        if owned is None and self._log.region.is_compiled:
            event = TracedEvent(_UNSEEN_WRITE, EventKind.FILLED, self._here.place(), [])
            return self._log.wrote(self._log.add(event), part, self._log.flags.put(part))
        event = TracedEvent(
            owned.name if owned else describe(part),
            EventKind.EXTERNAL,
            StepPlace("load", self._here.step, owned.module if owned else ""),
            reads=[],
            is_parameter=owned is not None and owned.is_parameter,
            is_untraced=self._here.has_skipped and self._is_of_an_untraced_step(owned),
        )
        return self._log.wrote(self._log.add(event), part, self._log.flags.put(part))

    def _is_of_an_untraced_step(self, owned: ModelMemory | None) -> bool:
        """Whether an untraced step may have written the tensor.

        All steps add to the gradients. Between steps the schedule passes on tensors that steps have made.
        """
        return self._here.step.microbatch is None if owned is None else owned.is_gradient

    def _numel(self, writer: Writer) -> int:
        return math.prod(self._log.events[writer.event].outputs[writer.output].shape)


def _largest(tensor: Tensor, ranges: Sequence[Range]) -> Tensor:
    """The largest of these byte ranges of a contiguous tensor's storage, as a flat view."""
    size, first = tensor.element_size(), tensor.storage_offset()
    start, end = max(ranges, key=lambda piece: piece[1] - piece[0])
    return tensor.detach().view(-1)[start // size - first : end // size - first]
