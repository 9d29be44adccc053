"""Put messages with bad values into records: what this rank sent, what it received, and where the sent values began."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.trace import CauseLink, Message, Pattern, TensorFacts
from megatron_nanguard.tracing.recording.events import TracedEvent, TracedOutput
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import NonfiniteFlags, pattern, union
from megatron_nanguard.tracing.walking.walk import Walk


class MessageRecords:
    """Make the records of messages; a record names its channel by the position in `channels`.

    Attributes:
        channels: those of the messages recorded so far, each once.
    """

    def __init__(
        self, walk: Walk, flags: NonfiniteFlags, causes_of: Callable[[Iterable[Writer]], tuple[CauseLink, ...]]
    ) -> None:
        """Start without records.

        Args:
            walk: over the events of the pass.
            flags: of the pass, already read.
            causes_of: gives the recorded origins and arrivals that bad values lead back to.
        """
        self._walk, self._flags, self._causes_of = walk, flags, causes_of
        self._positions: dict[Channel, int] = {}

    @property
    def channels(self) -> tuple[Channel, ...]:
        return tuple(self._positions)

    def departure(self, number: int) -> Message:
        """Describe a message that carried bad values away from this rank.

        Args:
            number: of its event.
        """
        event = self._walk.events[number]
        assert event.sent is not None, "only messages are sent"
        sent = self._walk.sent_points(number)
        return Message(
            event=number,
            operator=event.operator,
            channel=self._positions.setdefault(event.sent.channel, len(self._positions)),
            number=event.sent.number,
            sent=self._pattern(sent),
            arrived=self._pattern(Writer(number, output) for output in range(len(event.outputs))),
            first_used=None if event.first_used is None else event.first_used.record(),
            causes=self._causes_of(sent),
            carries=event.carries,
        )

    def arrival(self, number: int) -> Message:
        """Describe a message that brought bad values, with the sizes of what this rank sent and received.

        Args:
            number: of its event.
        """
        event = self._walk.events[number]
        assert event.sent is not None, "only messages are received"
        line = event.place.line if event.sent.has_peers else None
        return replace(
            self.departure(number),
            line=None if line is None else str(line),
            put_in=self._largest_sent(event),
            came_out=self._first_bad_output(number),
        )

    def _pattern(self, points: Iterable[Writer]) -> Pattern:
        return pattern(union(map(self._walk.value, points)))

    def _largest_sent(self, event: TracedEvent) -> TensorFacts | None:
        """The sent tensor with the largest magnitude."""
        assert event.sent is not None
        sent = [
            self._facts(read.name, TracedOutput(slot, read.seen.shape, read.seen.dtype))
            for read, slot in zip(event.reads, event.sent.slots, strict=True)
        ]
        return max(sent, key=lambda facts: facts.absmax or 0.0, default=None)

    def _first_bad_output(self, number: int) -> TensorFacts | None:
        outputs = enumerate(self._walk.events[number].outputs)
        bad = (output for index, output in outputs if self._walk.value(Writer(number, index)))
        first = next(bad, None)
        return None if first is None else self._facts("", first)

    def _facts(self, name: str, output: TracedOutput) -> TensorFacts:
        """Facts of a tensor, with its smallest and largest element where all elements are finite."""
        facts = output.facts(name, self._flags.bits(output.slot))
        if output.slot is None:
            return facts
        low, high = self._flags.ends(output.slot)
        if not (math.isfinite(low) and math.isfinite(high)):
            return facts
        return replace(facts, lowest=low, highest=high, absmax=max(abs(low), abs(high)))
