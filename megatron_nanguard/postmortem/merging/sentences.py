"""One or two sentences that say what happened."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.records.coordinates import RankGroup
from megatron_nanguard.records.incident import SUMMARY
from megatron_nanguard.records.phrase import ALONGSIDE, FOLLOWED, joined, opening, phrase
from megatron_nanguard.records.postmortem import Kind, RankSets
from megatron_nanguard.records.rank_words import name_ranks

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
