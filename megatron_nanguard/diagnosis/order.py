"""Which of several origins came first: by messages between the ranks where they tell, else by running number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from megatron_nanguard.diagnosis.traffic import Traffic, key_of
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.trace import Message, RankTrace


class Dated(NamedTuple):
    """An origin, and when it happened on its rank."""

    event: int
    origin: Origin


def earliest_first(found: Sequence[Dated], traces: Mapping[int, RankTrace], traffic: Traffic) -> list[Dated]:
    """Sort origins so that none stands behind one that happened after it.

    Args:
        found: in any order.
        traces: by rank.
        traffic: their messages, which tell what happened before what on different ranks.
    """
    left = sorted(found, key=lambda dated: (dated.event, dated.origin.rank))
    reach = {id(dated): _reached(dated, traces, traffic) for dated in left} if len(left) > 1 else {}
    ordered = []
    while left:
        first = next(
            (one for one in left if not any(_is_before(reach[id(other)], one) for other in left if other is not one)),
            left[0],
        )
        left = [dated for dated in left if dated is not first]
        ordered.append(first)
    return ordered


def _is_before(reach: Mapping[int, int], later: Dated) -> bool:
    return reach.get(later.origin.rank, later.event) < later.event


def _reached(start: Dated, traces: Mapping[int, RankTrace], traffic: Traffic) -> Mapping[int, int]:
    """For every rank that can know of the start through messages: its first event that can."""
    reach = {start.origin.rank: start.event}
    todo = [start.origin.rank]
    while todo:
        rank = todo.pop()
        for message in _sent_after(traces[rank], reach[rank]):
            for other, arrived in traffic.arrivals(key_of(message)).items():
                if other not in reach or arrived.event < reach[other]:
                    reach[other] = arrived.event
                    todo.append(other)
    return reach


def _sent_after(trace: RankTrace, event: int) -> Iterator[Message]:
    return (message for message in (*trace.departures, *trace.arrivals) if message.event > event)
