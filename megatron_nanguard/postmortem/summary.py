"""One or two sentences that say what happened."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.records.coordinates import RankGroup
from megatron_nanguard.records.postmortem import Kind, RankSets

NAMED_RANKS = 16
"""Longest list of ranks that a sentence spells out."""

WHAT = {
    Kind.GRADIENT_BEFORE_REDUCTION: "gradients of {who} were not finite before the data-parallel reduction",
    Kind.GRADIENT_AFTER_REDUCTION: "every local gradient was finite, and what the optimizer would have consumed on "
    "{who} was not: it went bad in or after the reduction",
    Kind.LOSS: "the loss on {who} was not finite, while every gradient was",
    Kind.NORM_OVERFLOW: "all gradients of {who} were finite, and too large for the sum of their squares",
    Kind.DEAD_STEP: "the step was applied though its gradient norm was not finite; it showed only after the vote",
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
    who = _with_words(name_ranks(accused), "; ".join(group.words for group in groups))
    sentence = f"Step {step}: {WHAT[kind].format(who=who)}."
    if ranks.bad_before and ranks.bad_after_only:
        sentence += f" {name_ranks(ranks.bad_after_only).capitalize()} went bad through communication alone."
    return sentence


def _with_words(ranks: str, words: str) -> str:
    """Name the set after its ranks, with commas around it; the words of a single rank begin with its number already."""
    if not words or words.startswith(ranks):
        return words or ranks
    return f"{ranks}, that is {words},"


def name_ranks(ranks: Sequence[int]) -> str:
    """Spell out a set of ranks, or its beginning and its size: "ranks 0, 1, 4, 5", "rank 7", "no rank"."""
    if not ranks:
        return "no rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(str(rank) for rank in ranks[:NAMED_RANKS])
    return f"ranks {shown}" if len(ranks) <= NAMED_RANKS else f"{len(ranks)} ranks ({shown}, ...)"
