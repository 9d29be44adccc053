"""Write the sentences of a merged incident: what happened, and why the step was not run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from megatron_nanguard.records.coordinates import RankGroup
from megatron_nanguard.records.incident import SUMMARY
from megatron_nanguard.records.phrase import ALONGSIDE, FOLLOWED, joined, name_ranks, opening, phrase
from megatron_nanguard.records.postmortem import Kind, RankSets
from megatron_nanguard.records.step.replay import ReplaySummary

LISTED_REASONS: Final = 4

WHAT: Final = {
    Kind.GRADIENT_BEFORE_REDUCTION: phrase("gradients of {who} were not finite before the data-parallel reduction."),
    Kind.GRADIENT_AFTER_REDUCTION: phrase(
        "every local gradient was finite, and what the optimizer would have consumed on {who} was not: it went bad in "
        "or after the reduction."
    ),
    Kind.LOSS: phrase("the loss on {who} was not finite, while every gradient was."),
    Kind.NORM_OVERFLOW: phrase("all gradients of {who} were finite, and too large for the sum of their squares."),
    Kind.DEAD_STEP: phrase(
        "the step was applied though its gradient norm was not finite; it showed only after the vote."
    ),
}


def summarize(step: int, kind: Kind, ranks: RankSets, groups: Sequence[RankGroup]) -> str:
    """Say what happened on which ranks, and which ranks were infected.

    Args:
        step: step as the training log counts it.
        kind: where non-finite values were seen first.
        ranks: all ranks, grouped by what happened to them.
        groups: the ranks that were bad first, as products of parallel axes.
    """
    failing = ranks.bad_after_only if kind is Kind.GRADIENT_AFTER_REDUCTION else ranks.bad_before
    who = _with_words(name_ranks(failing), joined(ALONGSIDE, (group.words for group in groups)))
    sentences = [WHAT[kind].format(who=who)]
    if ranks.bad_before and ranks.bad_after_only:
        infected = opening(name_ranks(ranks.bad_after_only))
        sentences.append(phrase("{who} became bad only in the data-parallel reduction.", who=infected))
    return SUMMARY.format(step=step, what=joined(FOLLOWED, sentences))


def _with_words(ranks: str, words: str) -> str:
    """Put the words of the set after the ranks, between commas; the words of a single rank name the rank already."""
    if not words or words.startswith(ranks):
        return words or ranks
    return phrase("{ranks}, that is {words},", ranks=ranks, words=words)


class ReplayMerger:
    """Collects the replay summaries of all ranks.

    Example: rank 5 cannot run the step again: the data iterator is a dict, which is no iterator
    """

    def __init__(self) -> None:
        self._summary = ReplaySummary()
        self._obstacles: dict[str, list[int]] = {}
        self._num_ranks = 0

    def add(self, rank: int, summary: ReplaySummary) -> None:
        """Add one rank; the first summary of a finished replay is kept, or else the first one with a reason."""
        self._num_ranks += 1
        if not (self._summary.done or self._summary.why_not) or (summary.done and not self._summary.done):
            self._summary = summary
        if summary.obstacle:
            self._obstacles.setdefault(summary.obstacle, []).append(rank)

    def merged(self) -> ReplaySummary:
        """Return the summary for all ranks; it lists once each reason why a rank could not run the step again."""
        if self._summary.done or not self._obstacles:
            return replace(self._summary, obstacle="")
        return ReplaySummary(why_not=self._reasons())

    def _reasons(self) -> str:
        if [len(ranks) for ranks in self._obstacles.values()] == [self._num_ranks]:
            return next(iter(self._obstacles))
        reasons = [
            phrase("{ranks} cannot run the step again: {why}", ranks=name_ranks(sorted(ranks)), why=why)
            for why, ranks in self._obstacles.items()
        ]
        more = len(reasons) - LISTED_REASONS
        rest = phrase("and {more} more reasons", more=more) if more > 0 else ""
        return joined(ALONGSIDE, [*reasons[:LISTED_REASONS], rest])
