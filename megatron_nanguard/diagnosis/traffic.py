"""Which communications of different ranks are one: by channel and running number, without any clock.

The order of communications on one channel is the same on all its members, and so is the number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from megatron_nanguard.records.trace import Message, RankTrace

LISTED = 8
"""Longest list of origins or arrivals in a trace; a shorter one was not cut."""
LISTED_DEPARTURES = 256
"""Longest list of departures, which are looked up from the other side."""

Key = tuple[tuple[str, ...], int]


def key_of(message: Message) -> Key:
    """What a communication is called alike on all its members."""
    return tuple(message.channel), message.number


class Traffic:
    """The bad communications of all ranks.

    Args:
        traces: those that can be trusted, by rank.
    """

    def __init__(self, traces: Mapping[int, RankTrace]) -> None:
        self._traces = traces
        self._senders: dict[Key, dict[int, Message]] = defaultdict(dict)
        self._arrived: dict[Key, dict[int, Message]] = defaultdict(dict)
        for rank, trace in traces.items():
            for message in trace.arrivals:
                self._arrived[key_of(message)][rank] = message
            for message in (*trace.departures, *trace.arrivals):
                if message.sent != "finite":
                    self._keep_sender(rank, message)

    def _keep_sender(self, rank: int, message: Message) -> None:
        """A collective in place stands among departures and arrivals: the one that says more is kept."""
        known = self._senders[key_of(message)].get(rank)
        if known is None or len(message.causes) > len(known.causes):
            self._senders[key_of(message)][rank] = message

    def bad_senders(self, key: Key) -> Mapping[int, Message]:
        """The members that sent bad values, with what they sent."""
        return self._senders.get(key, {})

    def arrivals(self, key: Key) -> Mapping[int, Message]:
        """The members on which the result was bad."""
        return self._arrived.get(key, {})

    def unheard(self, key: Key) -> Iterator[int]:
        """Members that may have sent bad values without our knowing."""
        channel, _ = key
        senders = channel[1:2] if channel[0] == "p2p" else channel[1:]
        for rank in map(int, senders):
            if rank not in self._traces or self._may_be_cut(self._traces[rank], key):
                yield rank

    def _may_be_cut(self, trace: RankTrace, key: Key) -> bool:
        """Lists hold the earliest: with a later message of the channel listed, none is missing before it."""
        channel, number = key
        if not trace.truncated or len(trace.departures) < LISTED_DEPARTURES:
            return False
        return not any(tuple(message.channel) == channel and message.number > number for message in trace.departures)
