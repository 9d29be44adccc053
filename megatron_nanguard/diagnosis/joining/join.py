"""Join the traces of all ranks: where it began, and which communication infected which rank.

    origin   rank 5, backward of micro-batch 2, decoder.layers.3.mlp, log -> nan
    infected rank 4 by TP all-reduce (tensor-parallel group of pp1 dp0, ranks 4, 5) from 5

Any subset of the ranks can be joined; the notes say what a missing one leaves open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from megatron_nanguard.diagnosis.joining import notes, origins
from megatron_nanguard.diagnosis.joining.channel_names import ChannelNames, name_message, name_place
from megatron_nanguard.diagnosis.joining.matched_messages import MatchedMessages
from megatron_nanguard.diagnosis.joining.order import Dated, earliest_first
from megatron_nanguard.diagnosis.joining.walk_back import Unseen, Walked, walk_back
from megatron_nanguard.records.incident import Infected, Origin
from megatron_nanguard.records.trace import CauseLink, Message, RankTrace

LISTED_ORIGINS: Final = 64
LISTED_INFECTED: Final = 64
LISTED_SOURCES: Final = 8
LISTED_GRADIENTS: Final = 8


@dataclass(frozen=True)
class Joined:
    """What the traces show together.

    Attributes:
        origins: where it began; several when they are independent, earliest first.
        infected: ranks that went bad through communication alone, each with the first that did it.
        also_infected: further communications that alone made gradients bad on ranks that were bad already.
        untouched: ranks to which no traced communication brought a bad value.
        only_gradients: bad values went from rank to rank only in gradients of weights.
        notes: what is not known, and why.
    """

    origins: tuple[Origin, ...] = ()
    infected: tuple[Infected, ...] = ()
    also_infected: tuple[Infected, ...] = ()
    untouched: tuple[int, ...] = ()
    only_gradients: bool = False
    notes: tuple[str, ...] = ()


def join(traces: Sequence[RankTrace], missing: Collection[int] = ()) -> Joined:
    """Walk back from every bad gradient and loss across the ranks.

    Args:
        traces: of the same pass, one per rank, in any order.
        missing: ranks known to have no trace.
    """
    by_rank = {trace.rank: trace for trace in sorted(traces, key=lambda trace: trace.rank) if not trace.broken}
    matched = MatchedMessages(by_rank)
    names = ChannelNames({rank: trace.coords for rank, trace in by_rank.items()})
    walked = walk_back(by_rank, matched)
    found = _origins(by_rank, matched, walked, names)
    listed = sorted(found, key=lambda dated: (dated.event, dated.origin.rank))[:LISTED_ORIGINS]
    of_origin = {rank for dated in found for rank in dated.origin.members}
    arrivals = _bad_arrivals(by_rank, matched, walked)
    first = {rank: messages[0] for rank, messages in arrivals.items()}
    infected = [rank for rank in first if rank not in of_origin]
    reached = {rank: message for rank, message in first.items() if rank in of_origin}
    return Joined(
        origins=tuple(dated.origin for dated in earliest_first(listed, by_rank, matched)),
        infected=tuple(_infected(rank, first[rank], matched, names) for rank in infected[:LISTED_INFECTED]),
        also_infected=tuple(islice(_later(by_rank, arrivals, of_origin, matched, names), LISTED_INFECTED)),
        untouched=_untouched(by_rank, {*first, *of_origin}, walked),
        only_gradients=bool(first) and all(message.carries == "gradients" for message in first.values()),
        notes=(
            *notes.on_missing_traces(traces, missing, walked),
            *notes.on_reached_origins(_reached_by_others(reached, found, matched, names)),
            *notes.on_unseen_writers(walked, found),
            *notes.on_labels(by_rank),
            *(() if found else notes.on_events_without_effect(by_rank)),
            *notes.on_left_out(len(found) - LISTED_ORIGINS, len(infected) - LISTED_INFECTED),
        ),
    )


def _origins(
    traces: Mapping[int, RankTrace], matched: MatchedMessages, walked: Walked, names: ChannelNames
) -> list[Dated]:
    """All origins with their times: traced ones, spoiled communications, and values whose writer was not seen."""
    found = [
        Dated(traces[rank].origins[index].event, origins.traced(traces[rank], traces[rank].origins[index]))
        for rank, index in walked.origins
    ]
    for key in walked.spoiled:
        arrived = matched.arrivals(key)
        spoiled = origins.spoiled(arrived, traces, names[matched.channel(key)])
        found.append(Dated(arrived[spoiled.rank].event, spoiled))
    explained = {rank for rank, _ in (*walked.origins, *walked.arrivals)}
    for unseen in _first_unseen(walked):
        if unseen.rank not in explained:
            trace = traces[unseen.rank]
            event = trace.num_events if unseen.event is None else unseen.event
            found.append(Dated(event, origins.unseen(trace, unseen)))
    return found


def _first_unseen(walked: Walked) -> Iterator[Unseen]:
    """The first of each rank; the later ones mostly follow from the first."""
    seen = set()
    for unseen in sorted(walked.unseen, key=lambda one: (one.rank, one.event is None, one.event or 0, one.what)):
        if unseen.rank not in seen:
            seen.add(unseen.rank)
            yield unseen


def _bad_arrivals(
    traces: Mapping[int, RankTrace], matched: MatchedMessages, walked: Walked
) -> dict[int, list[Message]]:
    """For every rank the bad arrivals of messages in which it had sent finite values, earliest first."""
    arrivals_of: dict[int, list[Message]] = defaultdict(list)
    for rank, index in walked.arrivals:
        message = traces[rank].arrivals[index]
        if message.sent == "finite" and matched.key(rank, message) not in walked.spoiled:
            arrivals_of[rank].append(message)
    return {rank: sorted(arrivals_of[rank], key=lambda message: message.event) for rank in sorted(arrivals_of)}


def _later(
    traces: Mapping[int, RankTrace],
    arrivals: Mapping[int, Sequence[Message]],
    of_origin: Collection[int],
    matched: MatchedMessages,
    names: ChannelNames,
) -> Iterator[Infected]:
    """Communications that made gradients bad on ranks that were bad already, as those of tied embeddings do.

    What comes on the same channel as the first, such as the next bucket of gradients, is left out.
    """
    for rank, messages in arrivals.items():
        known = set() if rank in of_origin else {messages[0].channel}
        for message in [message for message in messages if message.channel not in known]:
            cause = CauseLink("arrival", traces[rank].arrivals.index(message))
            gradients = [name for sink in traces[rank].sinks if sink.causes == (cause,) for name in sink.names]
            if gradients:
                later = _infected(rank, message, matched, names)
                yield replace(later, gradients=tuple(gradients[:LISTED_GRADIENTS]))


def _infected(rank: int, message: Message, matched: MatchedMessages, names: ChannelNames) -> Infected:
    """The record of a rank that one message made bad."""
    key = matched.key(rank, message)
    senders = (sender for sender in matched.bad_senders(key) if sender != rank)
    return Infected(
        rank=rank,
        by=names.kind(message, matched.channel(key)),
        group=names[matched.channel(key)],
        from_ranks=tuple(islice(senders, LISTED_SOURCES)),
        first_used=name_place(message.first_used) if message.first_used else None,
        call=name_message(message),
    )


def _reached_by_others(
    reached: Mapping[int, Message], found: Sequence[Dated], matched: MatchedMessages, names: ChannelNames
) -> dict[int, str]:
    """The kind of communication that reached each rank.

    What the members of a shared origin, such as a collective, sent each other afterwards is left out.
    """
    shared = [set(dated.origin.ranks) for dated in found if len(dated.origin.ranks) > 1]
    keys = {rank: matched.key(rank, message) for rank, message in reached.items()}
    return {
        rank: names.kind(message, matched.channel(keys[rank]))
        for rank, message in reached.items()
        if not any({rank, *matched.bad_senders(keys[rank])} <= ranks for ranks in shared)
    }


def _untouched(traces: Mapping[int, RankTrace], touched: Collection[int], walked: Walked) -> tuple[int, ...]:
    """The ranks that no bad value came to; empty where a part of the path is not known."""
    if not touched or walked.beyond or walked.cut:
        return ()
    return tuple(sorted(traces.keys() - set(touched) - {rank for rank, _ in walked.arrivals}))
