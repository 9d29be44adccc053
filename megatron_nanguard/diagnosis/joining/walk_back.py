"""Walk back from every bad gradient and loss of every rank to where it began, crossing ranks with the messages.

The tracer has condensed each trace already: a sink or a message leads to origins and arrivals of the same rank. An
arrival leads on to what its senders sent. If every sender was finite, it went bad on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from megatron_nanguard.diagnosis.joining.matched_messages import Key, MatchedMessages
from megatron_nanguard.records.trace import LISTED, CauseLink, Pattern, RankTrace

Place = tuple[int, int]
"""Rank, and position in one of its lists."""


@dataclass(frozen=True)
class Unseen:
    """A bad value whose writer the tracer did not see.

    Attributes:
        rank: global rank.
        what: the gradient or message that holds it.
        pattern: what was seen.
        event: when a message departed with it; null for a gradient.
    """

    rank: int
    what: str
    pattern: Pattern
    event: int | None = None


@dataclass
class Walked:
    """What the walk came across.

    Attributes:
        origins: positions in the origins of the ranks.
        arrivals: positions in the arrivals of the ranks.
        spoiled: communications that were finite at every sender and bad on arrival.
        unseen: bad values without a known writer.
        beyond: ranks that the walk led to and that have no trace to go on with.
        cut: ranks on which the walk ended at a list that had been cut.
    """

    origins: set[Place] = field(default_factory=set)
    arrivals: set[Place] = field(default_factory=set)
    spoiled: set[Key] = field(default_factory=set)
    unseen: set[Unseen] = field(default_factory=set)
    beyond: set[int] = field(default_factory=set)
    cut: set[int] = field(default_factory=set)


def walk_back(traces: Mapping[int, RankTrace], matched: MatchedMessages) -> Walked:
    """Follow every bad value of every rank to its end.

    Args:
        traces: those that can be trusted, by rank.
        matched: their communications.
    """
    walk = _Walk(traces, matched)
    for rank, trace in traces.items():
        for sink in trace.sinks:
            if sink.pattern != "finite":
                walk.follow(rank, sink.causes, [Unseen(rank, name, sink.pattern) for name in sink.names])
    return walk.to_the_end()


class _Walk:
    def __init__(self, traces: Mapping[int, RankTrace], matched: MatchedMessages) -> None:
        self._traces = traces
        self._matched = matched
        self._walked = Walked()
        self._todo: list[Key] = []
        self._met: set[Key] = set()

    def to_the_end(self) -> Walked:
        while self._todo:
            self._cross(self._todo.pop())
        return self._walked

    def follow(self, rank: int, causes: tuple[CauseLink, ...], if_none: Sequence[Unseen]) -> None:
        """Go one step back inside a rank."""
        trace = self._traces[rank]
        lengths = {"origin": len(trace.origins), "arrival": len(trace.arrivals)}
        known = [cause for cause in causes if cause.index < lengths[cause.to]]
        if not known:
            self._dead_end(trace, if_none)
        for cause in known:
            reached = self._walked.origins if cause.to == "origin" else self._walked.arrivals
            place = (rank, cause.index)
            if cause.to == "arrival" and place not in reached:
                self._meet(self._matched.key(rank, trace.arrivals[cause.index]))
            reached.add(place)

    def _meet(self, key: Key) -> None:
        """Remember a communication to cross, once: all members of a collective lead to the same senders."""
        if key not in self._met:
            self._met.add(key)
            self._todo.append(key)

    def _dead_end(self, trace: RankTrace, unseen: Sequence[Unseen]) -> None:
        if trace.truncated and LISTED in (len(trace.origins), len(trace.arrivals)):
            self._walked.cut.add(trace.rank)
        else:
            self._walked.unseen.update(unseen)

    def _cross(self, key: Key) -> None:
        """Go from an arrival to its senders."""
        senders = self._matched.bad_senders(key)
        for rank, message in senders.items():
            sent = f"what it sent in {message.operator} no. {message.number}"
            self.follow(rank, message.causes, [Unseen(rank, sent, message.sent, message.event)])
        if not senders:
            unknown = set(self._matched.unknown_senders(key))
            self._walked.beyond |= unknown - self._traces.keys()
            self._walked.cut |= unknown & self._traces.keys()
            if not unknown:
                self._walked.spoiled.add(key)
