"""The walk back: from bad gradients, losses and sent messages, over bad values only, to events that read nothing bad.

A bad value that ends in a mask, a `where` or a clamp is never reached, so it needs no rule. Infinities that were meant,
such as the -inf of a mask, are left out; an operator that turns one into a NaN is an origin.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

from megatron_nanguard.tracing.recording.events import EventKind, Region, Trace, TracedEvent, TracedRead
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import NAN, NonfiniteFlags, union


class Walk:
    """All bad values that a bad gradient, loss or sent message leads back to.

    A point of the walk is a `Writer`: an output of an event or, with the output ``~k``, the k-th tensor that a message
    sent.

    Attributes:
        events: of the pass.
        origins: bad outputs of events that read nothing bad, in the order of execution.
        arrivals: bad tensors that messages from other ranks brought.
        meant: infinities that are no fault.
        towards: for each point of the walk the next one towards the gradient, loss or message; None for the last.
    """

    def __init__(self, trace: Trace, flags: NonfiniteFlags) -> None:
        self.events = trace.events
        self._flags = flags
        self._values = [[flags.bits(output.slot) for output in event.outputs] for event in self.events]
        self.meant: set[Writer] = set()
        self._find_meant()
        self.towards: dict[Writer, Writer | None] = {}
        self._follow(trace, flags)
        points = sorted(self.towards)
        self.origins = [point for point in points if self._is_origin(point)]
        self.arrivals = [point for point in points if self._is_arrival(point)]
        self._terminals = {point: bit for bit, point in enumerate([*self.origins, *self.arrivals])}
        self._reach = self._reached(points)

    def value(self, point: Writer) -> int:
        """Return the flag of a point; 0 is finite."""
        if point.output >= 0:
            return self._values[point.event][point.output]
        sent = self.events[point.event].sent
        assert sent is not None, "only messages send"
        return self._flags.bits(sent.slots[~point.output])

    def read_value(self, read: TracedRead) -> int:
        """Return the flag of a tensor that an event read; 0 is finite."""
        if read.seen.slot is not None:
            return self._flags.bits(read.seen.slot)
        return union(self.value(writer) for writer in read.writers)

    def largest(self, read: TracedRead) -> float | None:
        """Return the largest magnitude of a finite tensor that an event read; None where it was not seen."""
        slots = [self.events[writer.event].outputs[writer.output].slot for writer in read.writers if writer.output >= 0]
        slots = slots if read.seen.slot is None else [read.seen.slot]
        ends = [abs(end) for slot in slots if slot is not None for end in self._flags.ends(slot)]
        return max(ends, default=None)

    def is_workspace(self, writer: Writer, region: Region) -> bool:
        """Whether it is memory for a kernel to work in, of which nothing has been written under marker fill.

        It may have been read or not: the region that got it has to be run again to know.
        """
        event = self.events[writer.event]
        size = math.prod(event.outputs[writer.output].shape) if writer.output >= 0 else 0
        if not 0 < size == event.never_written or event.region is None:
            return False
        is_own = event.region.name == f"{region.name.removesuffix('Backward')}.forward"
        return is_own or not event.region.is_function

    def departures(self) -> list[int]:
        """Return the numbers of the messages that sent bad values which were not meant."""
        return [number for number, event in enumerate(self.events) if any(self._bad_sent(number, event))]

    def causes(self, starts: Iterable[Writer]) -> list[Writer]:
        """Return the origins and arrivals that these points lead back to."""
        reached = union(self._reach.get(point, 0) for point in starts)
        return [point for point, bit in self._terminals.items() if reached >> bit & 1]

    def starts(self, writers: Iterable[Writer]) -> list[Writer]:
        """Return those writers of a tensor whose values are bad and were not meant."""
        return [writer for writer in writers if self.value(writer) and writer not in self.meant]

    def sent_points(self, number: int) -> list[Writer]:
        """Return the points of the bad tensors that a message sent."""
        return list(self._bad_sent(number, self.events[number]))

    def num_contained(self) -> int:
        """Count the bad events that no bad gradient, loss or sent message leads back to."""
        bad = {
            number
            for number, values in enumerate(self._values)
            for output, value in enumerate(values)
            if value and Writer(number, output) not in self.meant
        }
        return len(bad - {point.event for point in self.towards})

    def _find_meant(self) -> None:
        for number, event in enumerate(self.events):
            for output, value in enumerate(self._values[number]):
                point = Writer(number, output)
                if value and not value & NAN and self._is_meant(event, point, value):
                    self.meant.add(point)

    def _is_meant(self, event: TracedEvent, point: Writer, value: int) -> bool:
        """Whether an Inf was given as a constant, was data, or comes with the same sign from such an Inf."""
        if event.has_bad_constant or (event.kind is EventKind.EXTERNAL and not event.is_parameter):
            return True
        bad = [writer for read in _reads_of(event, point) for writer in read.writers if self.value(writer)]
        bad = bad or [writer for writer in self._went_into_region(event, point) if self.value(writer)]
        return bool(bad) and self.meant.issuperset(bad) and not value & ~union(map(self.value, bad))

    def _follow(self, trace: Trace, flags: NonfiniteFlags) -> None:
        ends = [point for sink in trace.sinks if flags.bits(sink.slot) for point in self.starts(sink.writers)]
        ends += [point for number, event in enumerate(self.events) for point in self._bad_sent(number, event)]
        self.towards = dict.fromkeys(ends)
        todo = deque(self.towards)
        while todo:
            point = todo.popleft()
            for cause in self._bad_causes(point):
                if cause not in self.towards:
                    self.towards[cause] = point
                    todo.append(cause)

    def _bad_causes(self, point: Writer) -> list[Writer]:
        event = self.events[point.event]
        if event.sent is not None and point.output >= 0:
            return [
                sent
                for sent in self._bad_sent(point.event, event)
                if event.reads[~sent.output].column in (None, point.output)
            ]
        # What was seen writing the same memory is a finer place than the region around.
        seen_writing = self.starts(self._bad_writers(_reads_of(event, point)))
        return seen_writing or self.starts(self._went_into_region(event, point))

    def _bad_writers(self, reads: Iterable[TracedRead]) -> Iterator[Writer]:
        """Yield the writers of tensors, without those of a part that was finite when it was read."""
        for read in reads:
            if read.seen.slot is None or self._flags.bits(read.seen.slot):
                yield from read.writers

    def _went_into_region(self, event: TracedEvent, point: Writer) -> list[Writer]:
        """Return what can have gone into an unseen write: what its region got, and what was made in it before."""
        region = event.region
        if region is None or not event.is_unseen_write or point.output < 0:
            return []
        writers = dict.fromkeys((*self._bad_writers(region.reads), *region.made))
        return [writer for writer in writers if writer.event < point.event and not self.is_workspace(writer, region)]

    def _bad_sent(self, number: int, event: TracedEvent) -> Iterator[Writer]:
        if event.sent is None:
            return
        for index, slot in enumerate(event.sent.slots):
            if self._flags.bits(slot):
                writers = [writer for writer in event.reads[index].writers if self.value(writer)]
                if not writers or not self.meant.issuperset(writers):
                    yield Writer(number, ~index)

    def _is_arrival(self, point: Writer) -> bool:
        event = self.events[point.event]
        return point.output >= 0 and event.sent is not None and event.sent.has_peers

    def _is_origin(self, point: Writer) -> bool:
        event = self.events[point.event]
        if self._is_arrival(point) or event.kind is EventKind.EMPTY:
            return False
        return event.never_written > 0 or not (event.is_untraced or self._bad_causes(point))

    def _reached(self, points: Iterable[Writer]) -> dict[Writer, int]:
        """Return for each point the origins and arrivals behind it, as bits.

        Args:
            points: sorted, so that the causes of a point come before it. What a message sent sorts before what it
                brought, because its output is negative.
        """
        reach: dict[Writer, int] = {}
        for point in points:
            own = 1 << self._terminals[point] if point in self._terminals else 0
            reach[point] = own | union(reach[cause] for cause in self._bad_causes(point))
        return reach


def _reads_of(event: TracedEvent, point: Writer) -> Iterator[TracedRead]:
    """Yield the reads that can have gone into one output, or into a tensor that a message sent."""
    if point.output < 0:
        yield event.reads[~point.output]
        return
    for read in event.reads:
        if not event.is_parallel or read.column in (None, point.output):
            yield read
