"""The notes beside a join: what is missing or cut, which writers were not seen, what was special about the replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from megatron_nanguard.diagnosis.joining.order import Dated
from megatron_nanguard.diagnosis.joining.origins import UNSEEN_WRITER
from megatron_nanguard.diagnosis.joining.walk_back import Walked
from megatron_nanguard.records.phrase import Phrase, name_ranks, phrase
from megatron_nanguard.records.trace import RankTrace

BROKEN: Final = phrase("origin lies beyond {ranks}, whose trace is broken")
MISSING: Final = phrase("origin lies beyond {ranks}, whose trace is missing")

_Words = TypeVar("_Words", str, Phrase, int)


def on_missing_traces(traces: Sequence[RankTrace], missing: Collection[int], walked: Walked) -> Iterator[str]:
    """Traces that are broken, missing or cut, and whether the walk back led to them.

    Args:
        traces: all of them, broken ones too.
        missing: ranks known to have no trace.
        walked: what the walk back came across.
    """
    broken = {trace.rank: trace.broken for trace in traces if trace.broken}
    for why, ranks in _ranks_by_words(sorted(broken.items())):
        yield phrase("{ranks} gave no verdict: {why}", ranks=name_ranks(ranks), why=why)
    for state, ranks in _ranks_by_words(
        (rank, BROKEN if rank in broken else MISSING) for rank in sorted(walked.beyond)
    ):
        yield state.format(ranks=name_ranks(ranks))
    if ranks := sorted(set(missing) - walked.beyond - broken.keys()):
        yield phrase("no trace of {ranks}: an origin there would not show", ranks=name_ranks(ranks))
    if walked.cut:
        yield phrase(
            "the walk ended at a list that was cut on {ranks}; there may be further origins",
            ranks=name_ranks(sorted(walked.cut)),
        )


def on_reached_origins(kinds: Mapping[int, str]) -> Iterator[str]:
    """Ranks with an origin of their own that a bad message reached as well.

    Args:
        kinds: of the communication, by rank.
    """
    for kind, ranks in _ranks_by_words(kinds.items()):
        if len(ranks) == 1:
            words = phrase("{ranks} has an origin of its own and was reached by {by} as well")
        else:
            words = phrase("{ranks} have origins of their own and were reached by {by} as well")
        yield words.format(ranks=name_ranks(ranks), by=kind)


def on_unseen_writers(walked: Walked, found: Sequence[Dated]) -> Iterator[str]:
    """Gradients and messages without a known writer, on ranks where that is not the origin."""
    origins_of = {(dated.origin.rank, dated.origin.operator) for dated in found}
    numbers = Counter(unseen.rank for unseen in walked.unseen)
    other = [(rank, number) for rank, number in sorted(numbers.items()) if (rank, UNSEEN_WRITER) not in origins_of]
    for number, ranks in _ranks_by_words(other):
        yield phrase(
            "{ranks}: the writers of {number} bad gradients or messages were not seen",
            ranks=name_ranks(ranks),
            number=number,
        )


def on_labels(traces: Mapping[int, RankTrace]) -> Iterator[str]:
    """What was special about the traced replay, on all ranks or on some."""
    labels = [(rank, label) for rank, trace in traces.items() for label in trace.labels]
    for label, ranks in _ranks_by_words(labels):
        if len(ranks) == len(traces):
            yield phrase("traced replay: {label}", label=label)
        else:
            yield phrase("traced replay of {ranks}: {label}", ranks=name_ranks(ranks), label=label)


def on_events_without_effect(traces: Mapping[int, RankTrace]) -> Iterator[str]:
    """Bad and infinite events that led to no bad gradient, loss or message."""
    if contained := sum(trace.num_contained for trace in traces.values()):
        yield phrase("bad events without effect on any gradient, loss or message: {number}", number=contained)
    if meant := sum(trace.num_meant for trace in traces.values()):
        yield phrase("infinities that were meant, such as those of a mask: {number}", number=meant)


def on_left_out(num_origins: int, num_infected: int) -> Iterator[str]:
    """How many origins and infected ranks are not listed."""
    if num_origins > 0:
        one, several = phrase("{number} more origin not listed"), phrase("{number} more origins not listed")
        yield (one if num_origins == 1 else several).format(number=num_origins)
    if num_infected > 0:
        one = phrase("{number} more infected rank not listed")
        several = phrase("{number} more infected ranks not listed")
        yield (one if num_infected == 1 else several).format(number=num_infected)


def _ranks_by_words(pairs: Iterable[tuple[int, _Words]]) -> Iterator[tuple[_Words, list[int]]]:
    """Group the ranks of which the same words are said."""
    ranks: dict[_Words, list[int]] = {}
    for rank, words in pairs:
        ranks.setdefault(words, []).append(rank)
    yield from ranks.items()
