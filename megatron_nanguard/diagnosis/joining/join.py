"""Join the traces of all ranks: where it began, and which communication infected which rank.

    origin   rank 5, backward of micro-batch 2, decoder.layers.3.mlp, log -> nan
    infected rank 4 by TP all-reduce (tensor-parallel group of pp1 dp0, ranks 4, 5) from 5

Any subset of the ranks can be joined; the notes say what a missing one leaves open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeVar

from megatron_nanguard.diagnosis.joining import origins
from megatron_nanguard.diagnosis.joining.channel_names import ChannelNames, name_message, name_place
from megatron_nanguard.diagnosis.joining.matched_messages import MatchedMessages
from megatron_nanguard.diagnosis.joining.order import Dated, earliest_first
from megatron_nanguard.diagnosis.joining.walk_back import Unseen, Walked, walk_back
from megatron_nanguard.records.incident import Infected, Origin
from megatron_nanguard.records.phrase import Phrase, phrase
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.records.trace import CauseLink, Message, RankTrace

LISTED_ORIGINS: Final = 64
LISTED_INFECTED: Final = 64
LISTED_SOURCES: Final = 8
LISTED_GRADIENTS: Final = 8

REACHED_ONE: Final = phrase("{ranks} has an origin of its own and was reached by {by} as well")
REACHED_SEVERAL: Final = phrase("{ranks} have origins of their own and were reached by {by} as well")
BROKEN: Final = phrase("origin lies beyond {ranks}, whose trace is broken")
MISSING: Final = phrase("origin lies beyond {ranks}, whose trace is missing")
CUT: Final = phrase("the walk ended at a list that was cut on {ranks}; there may be further origins")
BLIND: Final = phrase("{ranks}: the writers of {number} bad gradients or messages were not seen")
MORE_ORIGINS: Final = (phrase("{number} more origin not listed"), phrase("{number} more origins not listed"))
MORE_INFECTED: Final = (
    phrase("{number} more infected rank not listed"),
    phrase("{number} more infected ranks not listed"),
)

_Words = TypeVar("_Words", str, Phrase, int)


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
    chosen = sorted(found, key=lambda dated: (dated.event, dated.origin.rank))[:LISTED_ORIGINS]
    arrivals_of = _bad_arrivals(by_rank, matched, walked)
    infections = {rank: messages[0] for rank, messages in arrivals_of.items()}
    of_origin = {rank for dated in found for rank in dated.origin.members}
    infected = [rank for rank in infections if rank not in of_origin]
    return Joined(
        origins=tuple(dated.origin for dated in earliest_first(chosen, by_rank, matched)),
        infected=tuple(_infected(rank, infections[rank], matched, names) for rank in infected[:LISTED_INFECTED]),
        also_infected=tuple(islice(_later(by_rank, arrivals_of, of_origin, matched, names), LISTED_INFECTED)),
        untouched=_untouched(by_rank, {*infections, *of_origin}, walked),
        only_gradients=bool(infections) and all(one.carries == "gradients" for one in infections.values()),
        notes=(
            *_lost(traces, missing, walked),
            *_also_reached(_kinds(_from_outside(infections, found, matched), matched, names), of_origin),
            *_blind(walked, found),
            *_special(by_rank),
            *_without_effect(by_rank, found),
            *_left_out(*MORE_ORIGINS, len(found) - len(chosen)),
            *_left_out(*MORE_INFECTED, len(infected) - LISTED_INFECTED),
        ),
    )


def _origins(
    traces: Mapping[int, RankTrace], matched: MatchedMessages, walked: Walked, names: ChannelNames
) -> list[Dated]:
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
    arrivals_of: Mapping[int, Sequence[Message]],
    of_origin: Collection[int],
    matched: MatchedMessages,
    names: ChannelNames,
) -> Iterator[Infected]:
    """Communications that made gradients bad on ranks that were bad already, as those of tied embeddings do.

    What comes on the same channel as the first, such as the next bucket of gradients, is left out.
    """
    for rank, messages in arrivals_of.items():
        known = set() if rank in of_origin else {messages[0].channel}
        for message in [message for message in messages if message.channel not in known]:
            cause = CauseLink("arrival", traces[rank].arrivals.index(message))
            gradients = [name for sink in traces[rank].sinks if sink.causes == (cause,) for name in sink.names]
            if gradients:
                later = _infected(rank, message, matched, names)
                yield replace(later, gradients=tuple(gradients[:LISTED_GRADIENTS]))


def _infected(rank: int, message: Message, matched: MatchedMessages, names: ChannelNames) -> Infected:
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


def _lost(traces: Sequence[RankTrace], missing: Collection[int], walked: Walked) -> Iterator[str]:
    broken = {trace.rank: trace.broken for trace in traces if trace.broken}
    for why, ranks in _by_words(sorted(broken.items())):
        yield phrase("{ranks} gave no verdict: {why}", ranks=name_ranks(ranks), why=why)
    states = [(rank, BROKEN if rank in broken else MISSING) for rank in sorted(walked.beyond)]
    for beyond, ranks in _by_words(states):
        yield beyond.format(ranks=name_ranks(ranks))
    if silent := sorted(set(missing) - walked.beyond - broken.keys()):
        yield phrase("no trace of {ranks}: an origin there would not show", ranks=name_ranks(silent))
    if walked.cut:
        ranks = sorted(walked.cut)
        yield CUT.format(ranks=name_ranks(ranks))


def _from_outside(
    infections: Mapping[int, Message], found: Sequence[Dated], matched: MatchedMessages
) -> dict[int, Message]:
    """Leave out what the members of a shared origin, such as a collective, sent each other afterwards."""
    shared = [set(dated.origin.ranks) for dated in found if len(dated.origin.ranks) > 1]
    return {
        rank: message
        for rank, message in infections.items()
        if not any({rank, *matched.bad_senders(matched.key(rank, message))} <= ranks for ranks in shared)
    }


def _kinds(infections: Mapping[int, Message], matched: MatchedMessages, names: ChannelNames) -> dict[int, str]:
    return {
        rank: names.kind(message, matched.channel(matched.key(rank, message))) for rank, message in infections.items()
    }


def _also_reached(infections: Mapping[int, str], of_origin: Collection[int]) -> Iterator[str]:
    for kind, ranks in _by_words((rank, kind) for rank, kind in infections.items() if rank in of_origin):
        words = REACHED_ONE if len(ranks) == 1 else REACHED_SEVERAL
        yield words.format(ranks=name_ranks(ranks), by=kind)


def _blind(walked: Walked, found: Sequence[Dated]) -> Iterator[str]:
    """Gradients without a known writer on ranks that have another explanation."""
    origins_of = {(dated.origin.rank, dated.origin.operator) for dated in found}
    numbers = Counter(unseen.rank for unseen in walked.unseen)
    explained = [(rank, n) for rank, n in sorted(numbers.items()) if (rank, origins.UNSEEN_WRITER) not in origins_of]
    for number, ranks in _by_words(explained):
        yield BLIND.format(ranks=name_ranks(ranks), number=number)


def _special(traces: Mapping[int, RankTrace]) -> Iterator[str]:
    """What was special about the pass."""
    labelled = [(rank, label) for rank, trace in traces.items() for label in trace.labels]
    for label, ranks in _by_words(labelled):
        if len(ranks) == len(traces):
            yield phrase("traced replay: {label}", label=label)
        else:
            yield phrase("traced replay of {ranks}: {label}", ranks=name_ranks(ranks), label=label)


def _untouched(traces: Mapping[int, RankTrace], touched: Collection[int], walked: Walked) -> tuple[int, ...]:
    """The ranks that no bad value came to; empty where a part of the path is not known."""
    if not touched or walked.beyond or walked.cut:
        return ()
    return tuple(sorted(traces.keys() - set(touched) - {rank for rank, _ in walked.arrivals}))


def _without_effect(traces: Mapping[int, RankTrace], found: Sequence[Dated]) -> Iterator[str]:
    """Bad and infinite events that led nowhere, where no origin was found."""
    if found:
        return
    if contained := sum(trace.num_contained for trace in traces.values()):
        yield phrase("bad events without effect on any gradient, loss or message: {number}", number=contained)
    if meant := sum(trace.num_meant for trace in traces.values()):
        yield phrase("infinities that were meant, such as those of a mask: {number}", number=meant)


def _by_words(pairs: Iterable[tuple[int, _Words]]) -> Iterator[tuple[_Words, list[int]]]:
    """Group the ranks of which the same words are said."""
    ranks: dict[_Words, list[int]] = {}
    for rank, words in pairs:
        ranks.setdefault(words, []).append(rank)
    yield from ranks.items()


def _left_out(one: Phrase, several: Phrase, number: int) -> Iterator[str]:
    if number > 0:
        yield (one if number == 1 else several).format(number=number)
