"""Put what the walk back found into this rank's record, in lists short enough to join those of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from megatron_nanguard.records.trace import LISTED, LISTED_DEPARTURES, CauseLink, Pattern, RankTrace, Sink
from megatron_nanguard.tracing.recording.events import SinkRead, Trace
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import NonfiniteFlags, pattern
from megatron_nanguard.tracing.walking.message_records import MessageRecords
from megatron_nanguard.tracing.walking.origin_records import group_origins, origin_record
from megatron_nanguard.tracing.walking.walk import Walk

_MOST_SINKS: Final = 64


def summarize(
    trace: Trace, flags: NonfiniteFlags, rank: int, coords: str, microbatch: int | None, labels: tuple[str, ...]
) -> RankTrace:
    """Walk back from what is bad at the end, and record the earliest of each list.

    Args:
        trace: all events of the pass.
        flags: of the pass, already read.
        rank: global rank.
        coords: of this rank, such as "tp1pp1dp0".
        microbatch: the traced one; None where only the steps outside of any were traced.
        labels: what was special about this pass.
    """
    walk = Walk(trace, flags)
    groups = group_origins(walk)
    arrivals = list(dict.fromkeys(point.event for point in walk.arrivals))
    departures = walk.departures()
    causes_of = partial(_causes, walk, _positions(groups[:LISTED], arrivals[:LISTED], walk))
    messages = MessageRecords(walk, flags, causes_of)
    arrived = tuple(map(messages.arrival, arrivals[:LISTED]))
    departed = tuple(map(messages.departure, departures[:LISTED_DEPARTURES]))
    sinks = _bad_sinks(walk, flags, trace.sinks, causes_of)
    lists = ((groups, LISTED), (arrivals, LISTED), (departures, LISTED_DEPARTURES), (sinks, _MOST_SINKS))
    return RankTrace(
        rank=rank,
        coords=coords,
        microbatch=microbatch,
        labels=labels,
        channels=messages.channels,
        origins=tuple(origin_record(walk, group, trace.output_names) for group in groups[:LISTED]),
        arrivals=arrived,
        departures=departed,
        sinks=_group_sinks(islice(sinks.items(), _MOST_SINKS)),
        num_events=len(trace.events),
        num_meant=len({point.event for point in walk.meant}),
        num_contained=walk.num_contained(),
        truncated=sum(max(0, len(things) - most) for things, most in lists),
    )


def _positions(groups: Sequence[Sequence[Writer]], arrivals: Sequence[int], walk: Walk) -> dict[Writer, CauseLink]:
    """Position in the record of each end of the walk; ends beyond the longest list have none."""
    positions = {point: CauseLink("origin", number) for number, group in enumerate(groups) for point in group}
    numbers = {event: number for number, event in enumerate(arrivals)}
    ends = (point for point in walk.arrivals if point.event in numbers)
    positions.update((point, CauseLink("arrival", numbers[point.event])) for point in ends)
    return positions


def _causes(walk: Walk, positions: Mapping[Writer, CauseLink], starts: Iterable[Writer]) -> tuple[CauseLink, ...]:
    return tuple(dict.fromkeys(positions[point] for point in walk.causes(starts) if point in positions))


def _bad_sinks(
    walk: Walk,
    flags: NonfiniteFlags,
    reads: Iterable[SinkRead],
    causes_of: Callable[[Iterable[Writer]], tuple[CauseLink, ...]],
) -> dict[str, tuple[Pattern, tuple[CauseLink, ...]]]:
    """Pattern and causes of every bad gradient or loss, over all times it was looked at.

    A gradient that only untraced steps have made bad is left out: this pass cannot say where it comes from.
    """
    bits: dict[str, int] = {}
    causes: dict[str, dict[CauseLink, None]] = {}
    for read in reads:
        value = flags.bits(read.slot)
        starts = walk.starts(read.writers)
        found = causes_of(starts)
        if value and (found or not starts):
            bits[read.name] = bits.get(read.name, 0) | value
            causes.setdefault(read.name, {}).update(dict.fromkeys(found))
    return {name: (pattern(value), tuple(causes[name])) for name, value in bits.items()}


def _group_sinks(bad: Iterable[tuple[str, tuple[Pattern, tuple[CauseLink, ...]]]]) -> tuple[Sink, ...]:
    """One sink for all names with the same pattern and causes: in a large model every weight has the same ones."""
    names: dict[tuple[Pattern, tuple[CauseLink, ...]], list[str]] = {}
    for name, value in bad:
        names.setdefault(value, []).append(name)
    return tuple(Sink(tuple(same), *value) for value, same in names.items())
