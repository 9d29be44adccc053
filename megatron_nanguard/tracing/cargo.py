"""What a message put in and brought, as its flags tell: type, shape and, of what is finite, the ends."""

from __future__ import annotations

import math
from dataclasses import replace

from megatron_nanguard.records.trace import Message, TensorFacts
from megatron_nanguard.tensor_names import dtype_name
from megatron_nanguard.tracing.recording.events import TracedEvent, TracedOutput
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import NonfiniteFlags, pattern
from megatron_nanguard.tracing.walking.walk import Walk


def described(walk: Walk, flags: NonfiniteFlags, number: int, message: Message) -> Message:
    """An arrival with what went in and out on this rank, and where it was called.

    Args:
        walk: over the pass.
        flags: of the pass, fetched.
        number: of the event.
        message: its record.
    """
    event = walk.events[number]
    assert event.sent is not None, "only messages travel"
    line = event.place.line if event.sent.has_peers else None
    return replace(
        message,
        line=None if line is None else str(line),
        put_in=_largest(event, flags),
        came_out=_worst(walk, flags, number),
    )


def _largest(event: TracedEvent, flags: NonfiniteFlags) -> TensorFacts | None:
    """Of all that was sent, what is largest in magnitude."""
    assert event.sent is not None
    sent = [
        _facts(read.name, TracedOutput(slot, read.seen.shape, read.seen.dtype), flags)
        for read, slot in zip(event.reads, event.sent.slots, strict=True)
    ]
    return max(sent, key=lambda facts: facts.absmax or 0.0, default=None)


def _worst(walk: Walk, flags: NonfiniteFlags, number: int) -> TensorFacts | None:
    """What is bad of what arrived; the first of it."""
    outputs = walk.events[number].outputs
    bad = (output for place, output in enumerate(outputs) if walk.value(Writer(number, place)))
    found = next(bad, None)
    return None if found is None else _facts("", found, flags)


def _facts(name: str, output: TracedOutput, flags: NonfiniteFlags) -> TensorFacts:
    """The ends of a tensor that is bad are its bad elements: there nothing is told of its size."""
    facts = TensorFacts(name, output.shape, dtype_name(output.dtype), pattern(flags.bits(output.slot)))
    if output.slot is None:
        return facts
    low, high = flags.ends(output.slot)
    if not (math.isfinite(low) and math.isfinite(high)):
        return facts
    return replace(facts, lowest=low, highest=high, absmax=max(abs(low), abs(high)))
