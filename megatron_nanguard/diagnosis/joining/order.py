"""Which of several origins came first: by messages between the ranks where they tell, else by running number."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from megatron_nanguard.diagnosis.joining.matched_messages import Key, Traffic
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.trace import RankTrace


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
    by_number = sorted(found, key=lambda dated: (dated.event, dated.origin.rank))
    if len(by_number) < 2:
        return by_number
    before = _Clock(by_number, traces, traffic).run()
    left = list(range(len(by_number)))
    ordered = []
    while left:
        others = sum(1 << number for number in left)
        first = next((number for number in left if not before[number] & others), left[0])
        left.remove(first)
        ordered.append(by_number[first])
    return ordered


class _Moment(NamedTuple):
    """What happens on a rank, in the order of its events; in one event the rank sends before anything arrives.

    Attributes:
        event: running number on the rank.
        what: SENDS, BEGINS or ARRIVES.
        key: of the message; None for an origin.
        origin: its number; -1 for a message.
    """

    event: int
    what: int
    key: Key | None = None
    origin: int = -1


SENDS, BEGINS, ARRIVES = range(3)


class _Clock:
    """Lets all ranks run through their moments, each as far as what it waits for has been sent.

    What a rank can know of is kept as one bit per origin, and handed on with every message: one pass for all origins.
    """

    def __init__(self, found: Sequence[Dated], traces: Mapping[int, RankTrace], traffic: Traffic) -> None:
        self._to_send: Counter[Key] = Counter()
        self._moments = {rank: self._messages(rank, trace, traffic) for rank, trace in traces.items()}
        for number, dated in enumerate(found):
            self._moments[dated.origin.rank].append(_Moment(dated.event, BEGINS, None, number))
        for moments in self._moments.values():
            moments.sort(key=lambda moment: (-moment.event, -moment.what))
        self._knows = dict.fromkeys(traces, 0)
        self._carries: dict[Key, int] = defaultdict(int)
        self._waiting: dict[Key, list[int]] = {}
        self._before = [0] * len(found)

    def _messages(self, rank: int, trace: RankTrace, traffic: Traffic) -> list[_Moment]:
        sent = {traffic.key(rank, message): message.event for message in (*trace.departures, *trace.arrivals)}
        self._to_send.update(sent.keys())
        arrived = [(message.event, traffic.key(rank, message)) for message in trace.arrivals]
        return [_Moment(event, SENDS, key) for key, event in sent.items()] + [
            _Moment(event, ARRIVES, key) for event, key in arrived
        ]

    def run(self) -> list[int]:
        """For every origin the others that it can know of, as bits."""
        ready = list(self._moments)
        while ready or self._waiting:
            if not ready:
                # Calls that return at once may cross on different ranks; then one goes on without the others.
                key = next(iter(self._waiting))
                self._to_send[key] = 0
                ready = self._waiting.pop(key)
            ready += self._go_on(ready.pop())
        return self._before

    def _go_on(self, rank: int) -> list[int]:
        """Up to the next message that others have yet to send; gives back whom that let go on."""
        moments, woken = self._moments[rank], []
        while moments:
            _, what, key, origin = moments[-1]
            if key is None:
                self._before[origin] = self._knows[rank]
                self._knows[rank] |= 1 << origin
            elif what == SENDS:
                self._carries[key] |= self._knows[rank]
                self._to_send[key] -= 1
                if self._to_send[key] == 0:
                    woken += self._waiting.pop(key, [])
            elif self._to_send[key] > 0:
                self._waiting.setdefault(key, []).append(rank)
                break
            else:
                self._knows[rank] |= self._carries[key]
            moments.pop()
        return woken
