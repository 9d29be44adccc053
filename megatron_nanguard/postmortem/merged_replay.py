"""Whether the step was run again, over all ranks: where it was not, whose reason that was.

rank 5 cannot run the step again: the data iterator is a dict, which is no iterator
"""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.records.phrase import ALONGSIDE, joined, phrase
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.records.replay import ReplaySummary

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
