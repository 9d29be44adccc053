"""Match the messages of different ranks that are one communication, by channel and running number, without any clock.

The order of communications on one channel is the same on all its members, and so is the number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.trace import LISTED_DEPARTURES, Message, RankTrace


class Key(NamedTuple):
    """A communication, named alike on all its members.

    Attributes:
        channel: position in the channels of all ranks; their ranks may be many, so that each is looked up once.
        number: of the communication on this channel.
    """

    channel: int
    number: int


class MatchedMessages:
    """The bad communications of all ranks.

    Args:
        traces: those that can be trusted, by rank and in the order of ranks.
    """

    def __init__(self, traces: Mapping[int, RankTrace]) -> None:
        numbers: dict[Channel, int] = {}
        self._traces = traces
        self._numbers: dict[int, Sequence[int]] = {}
        self._senders: dict[Key, dict[int, Message]] = defaultdict(dict)
        self._arrived: dict[Key, dict[int, Message]] = defaultdict(dict)
        self._last: dict[int, dict[int, int]] = {}
        for rank, trace in traces.items():
            self._numbers[rank] = [numbers.setdefault(channel, len(numbers)) for channel in trace.channels]
            self._add(rank, trace)
        self._channels = tuple(numbers)

    def _add(self, rank: int, trace: RankTrace) -> None:
        for message in trace.arrivals:
            self._arrived[self.key(rank, message)][rank] = message
        for message in (*trace.departures, *trace.arrivals):
            if message.sent != "finite":
                self._keep_sender(rank, message)
        if trace.truncated and len(trace.departures) >= LISTED_DEPARTURES:
            keys = sorted(self.key(rank, message) for message in trace.departures)
            self._last[rank] = dict(keys)

    def _keep_sender(self, rank: int, message: Message) -> None:
        """Keep the one with more causes: a collective in place is listed both as departure and as arrival."""
        senders = self._senders[self.key(rank, message)]
        known = senders.get(rank)
        if known is None or len(message.causes) > len(known.causes):
            senders[rank] = message

    def key(self, rank: int, message: Message) -> Key:
        """The name of a message that all ranks share."""
        return Key(self._numbers[rank][message.channel], message.number)

    def channel(self, key: Key) -> Channel:
        """The ranks between which a communication goes."""
        return self._channels[key.channel]

    def bad_senders(self, key: Key) -> Mapping[int, Message]:
        """The members that sent bad values, with what they sent; in the order of ranks."""
        return self._senders.get(key, {})

    def arrivals(self, key: Key) -> Mapping[int, Message]:
        """The members on which the result was bad; in the order of ranks."""
        return self._arrived.get(key, {})

    def unknown_senders(self, key: Key) -> Iterator[int]:
        """Members that may have sent bad values although no trace says so."""
        for rank in self.channel(key).senders:
            # A cut list holds the earliest messages: none is missing before a later one of the same channel.
            may_be_cut = rank in self._last and self._last[rank].get(key.channel, -1) <= key.number
            if rank not in self._traces or may_be_cut:
                yield rank
