"""Order several origins in time: by the messages between the ranks, and by running number where no message decides."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from megatron_nanguard.diagnosis.joining.matched_messages import Key, MatchedMessages
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.trace import RankTrace


class Dated(NamedTuple):
    """An origin, and when it happened on its rank."""

    event: int
    origin: Origin


def earliest_first(found: Sequence[Dated], traces: Mapping[int, RankTrace], matched: MatchedMessages) -> list[Dated]:
    """Sort origins so that none comes after one that happened later.

    Args:
        found: in any order.
        traces: by rank.
        matched: their messages, which order events on different ranks.
    """
    by_number = sorted(found, key=lambda dated: (dated.event, dated.origin.rank))
    if len(by_number) < 2:
        return by_number
    before = _Clock(by_number, traces, matched).run()
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
    """Run all ranks through their moments in parallel; a rank waits until what it receives has been sent.

    A rank keeps one bit per origin that happened before its present moment. Every message carries the bits of its
    senders, so that one pass orders all origins.
    """

    def __init__(self, found: Sequence[Dated], traces: Mapping[int, RankTrace], matched: MatchedMessages) -> None:
        self._to_send: Counter[Key] = Counter()
        self._moments = {rank: self._messages(rank, trace, matched) for rank, trace in traces.items()}
        for number, dated in enumerate(found):
            self._moments[dated.origin.rank].append(_Moment(dated.event, BEGINS, None, number))
        for moments in self._moments.values():
            moments.sort(key=lambda moment: (-moment.event, -moment.what))
        self._knows = dict.fromkeys(traces, 0)
        self._carries: dict[Key, int] = defaultdict(int)
        self._waiting: dict[Key, list[int]] = {}
        self._before = [0] * len(found)

    def _messages(self, rank: int, trace: RankTrace, matched: MatchedMessages) -> list[_Moment]:
        sent = {matched.key(rank, message): message.event for message in (*trace.departures, *trace.arrivals)}
        self._to_send.update(sent.keys())
        arrived = [(message.event, matched.key(rank, message)) for message in trace.arrivals]
        return [_Moment(event, SENDS, key) for key, event in sent.items()] + [
            _Moment(event, ARRIVES, key) for event, key in arrived
        ]

    def run(self) -> list[int]:
        """For every origin, as bits, the others that happened before it."""
        ready = list(self._moments)
        while ready or self._waiting:
            if not ready:
                # Asynchronous calls may cross on different ranks, which would wait for each other: let one go on.
                key = next(iter(self._waiting))
                self._to_send[key] = 0
                ready = self._waiting.pop(key)
            ready += self._go_on(ready.pop())
        return self._before

    def _go_on(self, rank: int) -> list[int]:
        """Go on to the next message that is not sent yet; give back the ranks that may go on now."""
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
