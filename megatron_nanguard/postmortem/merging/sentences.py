"""Sentences of a merged incident: what happened, and why the step was not run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from megatron_nanguard.records.coordinates import RankGroup
from megatron_nanguard.records.incident import SUMMARY
from megatron_nanguard.records.phrase import ALONGSIDE, FOLLOWED, joined, opening, phrase
from megatron_nanguard.records.postmortem import Kind, RankSets
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.records.replay import ReplaySummary

WHAT = {
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
    """Say what happened, to whom, and who was infected by it.

    Args:
        step: step as the training log counts it.
        kind: where the non-finite values were met first.
        ranks: all ranks by what happened to them.
        groups: the failing set in words.
    """
    accused = ranks.bad_after_only if kind is Kind.GRADIENT_AFTER_REDUCTION else ranks.bad_before
    who = _with_words(name_ranks(accused), joined(ALONGSIDE, (group.words for group in groups)))
    told = [WHAT[kind].format(who=who)]
    if ranks.bad_before and ranks.bad_after_only:
        infected = opening(name_ranks(ranks.bad_after_only))
        told.append(phrase("{who} became bad only in the data-parallel reduction.", who=infected))
    return SUMMARY.format(step=step, what=joined(FOLLOWED, told))


def _with_words(ranks: str, words: str) -> str:
    """Name the set after its ranks, with commas around it; the words of a single rank begin with its number already."""
    if not words or words.startswith(ranks):
        return words or ranks
    return phrase("{ranks}, that is {words},", ranks=ranks, words=words)


LISTED_REASONS = 4


class ReplayMerger:
    """Collects what each rank says of the replay."""

    def __init__(self) -> None:
        self._told = ReplaySummary()
        self._obstacles: dict[str, list[int]] = {}
        self._num_ranks = 0

    def add(self, rank: int, summary: ReplaySummary) -> None:
        """Take one rank; the first that came so far as to know tells for all."""
        self._num_ranks += 1
        if not (self._told.done or self._told.why_not) or (summary.done and not self._told.done):
            self._told = summary
        if summary.obstacle:
            self._obstacles.setdefault(summary.obstacle, []).append(rank)

    def merged(self) -> ReplaySummary:
        """The replay; where ranks could not run the step again, their reasons, each told once."""
        if self._told.done or not self._obstacles:
            return replace(self._told, obstacle="")
        return ReplaySummary(why_not=self._reasons())

    def _reasons(self) -> str:
        if [len(ranks) for ranks in self._obstacles.values()] == [self._num_ranks]:
            return next(iter(self._obstacles))
        told = [
            phrase("{ranks} cannot run the step again: {why}", ranks=name_ranks(sorted(ranks)), why=why)
            for why, ranks in self._obstacles.items()
        ]
        more = len(told) - LISTED_REASONS
        rest = phrase("and {more} more reasons", more=more) if more > 0 else ""
        return joined(ALONGSIDE, [*told[:LISTED_REASONS], rest])
