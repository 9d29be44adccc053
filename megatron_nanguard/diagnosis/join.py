"""The traces of all ranks into one story: where it began, and who was infected by what.

    origin   rank 5, backward of micro-batch 2, decoder.layers.3.mlp, log -> nan
    infected rank 4 by allreduce_ no. 38 (tensor-parallel group of pp1 dp0, ranks 4, 5) from 5

Any subset of the ranks can be joined; what a missing one would have told is said.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from megatron_nanguard.diagnosis import origins
from megatron_nanguard.diagnosis.order import Dated, earliest_first
from megatron_nanguard.diagnosis.traffic import Traffic, key_of
from megatron_nanguard.diagnosis.walk import Unseen, Walked, walk_back
from megatron_nanguard.diagnosis.wording import name_channel, name_message, name_place, name_ranks
from megatron_nanguard.records.incident import Infected, Origin
from megatron_nanguard.records.trace import Message, RankTrace

LISTED_ORIGINS: Final = 64
LISTED_INFECTED: Final = 64
LISTED_SOURCES: Final = 8


@dataclass(frozen=True)
class Joined:
    """What the traces tell together.

    Attributes:
        origins: where it began; several when they are independent, earliest first.
        infected: ranks that went bad through communication alone, each with the first that did it.
        notes: what could not be told, and why.
    """

    origins: tuple[Origin, ...] = ()
    infected: tuple[Infected, ...] = ()
    notes: tuple[str, ...] = ()


def join(traces: Sequence[RankTrace], missing: Collection[int] = ()) -> Joined:
    """Walk back from every bad gradient and loss across the ranks.

    Args:
        traces: of the same pass, one per rank, in any order.
        missing: ranks known to have no trace.
    """
    by_rank = {trace.rank: trace for trace in sorted(traces, key=lambda trace: trace.rank) if not trace.broken}
    traffic = Traffic(by_rank)
    walked = walk_back(by_rank, traffic)
    found = _origins(by_rank, traffic, walked)
    chosen = sorted(found, key=lambda dated: (dated.event, dated.origin.rank))[:LISTED_ORIGINS]
    infections = dict(_infections(by_rank, walked))
    coords = {rank: trace.coords for rank, trace in by_rank.items()}
    of_origin = {rank for dated in found for rank in (dated.origin.rank, *dated.origin.ranks)}
    infected = [rank for rank in infections if rank not in of_origin]
    return Joined(
        origins=tuple(dated.origin for dated in earliest_first(chosen, by_rank, traffic)),
        infected=tuple(_infected(rank, infections[rank], coords, traffic) for rank in infected[:LISTED_INFECTED]),
        notes=(
            *_lost(traces, missing, walked),
            *_also_reached(infections, of_origin),
            *_blind(walked, found),
            *_left_out("origin", len(found) - len(chosen)),
            *_left_out("infected rank", len(infected) - LISTED_INFECTED),
        ),
    )


def _origins(traces: Mapping[int, RankTrace], traffic: Traffic, walked: Walked) -> list[Dated]:
    found = [
        Dated(traces[rank].origins[index].event, origins.traced(traces[rank], traces[rank].origins[index]))
        for rank, index in walked.origins
    ]
    for key in walked.spoiled:
        arrived = traffic.arrivals(key)
        found.append(Dated(arrived[min(arrived)].event, origins.spoiled(arrived, traces)))
    explained = {rank for rank, _ in (*walked.origins, *walked.arrivals)}
    for unseen in _first_unseen(walked):
        if unseen.rank not in explained:
            trace = traces[unseen.rank]
            event = trace.num_events if unseen.event is None else unseen.event
            found.append(Dated(event, origins.unseen(trace, unseen)))
    return found


def _first_unseen(walked: Walked) -> Iterator[Unseen]:
    """The first of each rank: what nobody was seen to write is mostly the wake of one write."""
    told = set()
    for unseen in sorted(walked.unseen, key=lambda one: (one.rank, one.event is None, one.event or 0, one.what)):
        if unseen.rank not in told:
            told.add(unseen.rank)
            yield unseen


def _infections(traces: Mapping[int, RankTrace], walked: Walked) -> Iterator[tuple[int, Message]]:
    """For every rank its first bad arrival that came while what it sent was finite."""
    innocent: dict[int, list[Message]] = defaultdict(list)
    for rank, index in walked.arrivals:
        message = traces[rank].arrivals[index]
        if message.sent == "finite" and key_of(message) not in walked.spoiled:
            innocent[rank].append(message)
    for rank in sorted(innocent):
        yield rank, min(innocent[rank], key=lambda message: message.event)


def _infected(rank: int, message: Message, coords: Mapping[int, str], traffic: Traffic) -> Infected:
    senders = sorted(sender for sender in traffic.bad_senders(key_of(message)) if sender != rank)
    return Infected(
        rank=rank,
        by=name_message(message),
        group=name_channel(message.channel, coords),
        from_ranks=tuple(senders[:LISTED_SOURCES]),
        first_used=name_place(message.first_used) if message.first_used else None,
    )


def _lost(traces: Sequence[RankTrace], missing: Collection[int], walked: Walked) -> Iterator[str]:
    broken = {trace.rank: trace.broken for trace in traces if trace.broken}
    for rank, why in sorted(broken.items()):
        yield f"rank {rank} gave no verdict: {why}"
    for rank in sorted(walked.beyond):
        state = "is broken" if rank in broken else "is missing"
        yield f"origin lies beyond rank {rank}, whose trace {state}"
    if silent := sorted(set(missing) - walked.beyond - broken.keys()):
        yield f"no trace of {name_ranks(silent)}: an origin there would not show"
    if walked.cut:
        yield f"the walk ended at a list that was cut on {name_ranks(sorted(walked.cut))}; there may be further origins"


def _also_reached(infections: Mapping[int, Message], of_origin: Collection[int]) -> Iterator[str]:
    for rank, message in infections.items():
        if rank in of_origin:
            yield f"rank {rank} has an origin of its own and was reached by {name_message(message)} as well"


def _blind(walked: Walked, found: Sequence[Dated]) -> Iterator[str]:
    """Gradients without a known writer on ranks that are explained otherwise."""
    accused = {(dated.origin.rank, dated.origin.operator) for dated in found}
    numbers = Counter(unseen.rank for unseen in walked.unseen)
    for rank, number in sorted(numbers.items()):
        if (rank, origins.UNSEEN_WRITER) not in accused:
            yield f"rank {rank}: the writers of {number} bad gradients or messages were not seen"


def _left_out(what: str, number: int) -> Iterator[str]:
    if number > 0:
        yield f"{number} more {what}{'s' if number > 1 else ''} not listed"
