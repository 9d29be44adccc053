"""One rank's trace as a record: origins, messages and sinks, cut down to what the ranks need to be joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.postmortem import Pattern
from megatron_nanguard.records.trace import LISTED, LISTED_DEPARTURES, CauseLink, Message, RankTrace, Sink
from megatron_nanguard.tracing.cargo import described
from megatron_nanguard.tracing.recording.events import SinkRead, Trace
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import NonfiniteFlags, pattern
from megatron_nanguard.tracing.walking.origins import group_origins, origin_record
from megatron_nanguard.tracing.walking.walk import Walk

_MOST_SINKS: Final = 64


def summarize(
    trace: Trace, flags: NonfiniteFlags, rank: int, coords: str, microbatch: int | None, labels: tuple[str, ...]
) -> RankTrace:
    """Walk back and keep the earliest of everything.

    Args:
        flags: of the trace, fetched.
    """
    walk = Walk(trace, flags)
    groups = group_origins(walk)
    arrivals = list(dict.fromkeys(place.event for place in walk.arrivals))
    departures = walk.departures()
    index = _index(groups[:LISTED], arrivals[:LISTED], walk)
    channels: dict[Channel, int] = {}
    arrived = tuple(
        described(walk, flags, number, _message(walk, number, index, channels)) for number in arrivals[:LISTED]
    )
    departed = tuple(_message(walk, number, index, channels) for number in departures[:LISTED_DEPARTURES])
    sinks = _bad_sinks(walk, flags, trace.sinks, index)
    return RankTrace(
        rank=rank,
        coords=coords,
        microbatch=microbatch,
        labels=labels,
        channels=tuple(channels),
        origins=tuple(origin_record(walk, group, trace.output_names) for group in groups[:LISTED]),
        arrivals=arrived,
        departures=departed,
        sinks=_sinks(islice(sinks.items(), _MOST_SINKS)),
        num_events=len(trace.events),
        num_meant=len({place.event for place in walk.meant}),
        num_contained=walk.num_contained(),
        truncated=sum(
            max(0, len(things) - most)
            for things, most in (
                (groups, LISTED),
                (arrivals, LISTED),
                (departures, LISTED_DEPARTURES),
                (sinks, _MOST_SINKS),
            )
        ),
    )


def _index(groups: Sequence[Sequence[Writer]], arrivals: Sequence[int], walk: Walk) -> dict[Writer, CauseLink]:
    """Where each end of the walk stands in the record; those that were cut off are missing."""
    index = {place: CauseLink("origin", number) for number, group in enumerate(groups) for place in group}
    numbers = {event: number for number, event in enumerate(arrivals)}
    index.update(
        (place, CauseLink("arrival", numbers[place.event])) for place in walk.arrivals if place.event in numbers
    )
    return index


def _causes(walk: Walk, starts: Iterable[Writer], index: Mapping[Writer, CauseLink]) -> tuple[CauseLink, ...]:
    return tuple(dict.fromkeys(index[place] for place in walk.causes(starts) if place in index))


def _message(walk: Walk, number: int, index: Mapping[Writer, CauseLink], channels: dict[Channel, int]) -> Message:
    """One message; its channel is added to those that are known."""
    event = walk.events[number]
    assert event.sent is not None, "only messages travel"
    sent = walk.sent_places(number)
    return Message(
        event=number,
        operator=event.operator,
        channel=channels.setdefault(event.sent.channel, len(channels)),
        number=event.sent.number,
        sent=_worst(walk, sent),
        arrived=_worst(walk, (Writer(number, output) for output in range(len(event.outputs)))),
        first_used=None if event.first_used is None else event.first_used.record(),
        causes=_causes(walk, sent, index),
        carries=event.carries,
    )


def _worst(walk: Walk, places: Iterable[Writer]) -> Pattern:
    bits = 0
    for place in places:
        bits |= walk.value(place)
    return pattern(bits)


def _bad_sinks(
    walk: Walk, flags: NonfiniteFlags, reads: Iterable[SinkRead], index: Mapping[Writer, CauseLink]
) -> dict[str, tuple[Pattern, tuple[CauseLink, ...]]]:
    """Pattern and causes of every bad gradient or loss, over all times it was looked at.

    A gradient that only a step which is not traced has spoiled is left out: nothing is known of it here.
    """
    bits: dict[str, int] = {}
    causes: dict[str, dict[CauseLink, None]] = {}
    for read in reads:
        value = flags.bits(read.slot)
        starts = walk.starts(read.writers)
        found = _causes(walk, starts, index)
        if value and (found or not starts):
            bits[read.name] = bits.get(read.name, 0) | value
            causes.setdefault(read.name, {}).update(dict.fromkeys(found))
    return {name: (pattern(value), tuple(causes[name])) for name, value in bits.items()}


def _sinks(bad: Iterable[tuple[str, tuple[Pattern, tuple[CauseLink, ...]]]]) -> tuple[Sink, ...]:
    """Those that lead back to the same are told together: in a large model every weight does."""
    names: dict[tuple[Pattern, tuple[CauseLink, ...]], list[str]] = {}
    for name, told in bad:
        names.setdefault(told, []).append(name)
    return tuple(Sink(tuple(alike), *told) for told, alike in names.items())
