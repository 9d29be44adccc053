"""An alarm: the flags of a step on which the ranks have voted."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer
from megatron_nanguard.sentinel.vote_flags import Flag


@dataclass(frozen=True)
class Alarm:
    """The outcome of one vote.

    Attributes:
        votes: the maximum of every flag over all ranks, in the order of ``Flag``.
        optimizer: the outermost optimizer that asked for the decision.
        voters: the ranks that voted, and handle the incident together.
    """

    votes: tuple[int, ...]
    optimizer: MegatronOptimizer
    voters: Voters

    def has(self, flag: Flag) -> bool:
        """Whether some rank raised this flag."""
        return bool(self.votes[flag])
