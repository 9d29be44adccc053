"""What one rank tells all others about an alarm: a fixed number of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from megatron_nanguard.incident.rank_evidence import RankEvidence
from megatron_nanguard.records.coordinates import Coordinates


@dataclass(frozen=True)
class RankSummary:
    """One row of the exchange.

    Attributes:
        bad_before: an element of this rank's own gradients was not finite before the reduction.
        bad_after: an element of what the optimizer would consume is not finite.
        bad_loss: a loss is not finite.
        suspicious_before, suspicious_after: only the norm is not finite, or too large to be summed over the ranks.
        dead_step: the norm of the step before was not finite.
        own_fault: the guard failed here; the rest may be incomplete.
        can_replay: the step can be run again here.
    """

    rank: int
    tp: int
    cp: int
    ep: int
    dp: int
    pp: int
    expert_tp: int
    expert_dp: int
    bad_before: int
    bad_after: int
    bad_loss: int
    suspicious_before: int
    suspicious_after: int
    dead_step: int
    own_fault: int
    can_replay: int

    @classmethod
    def of(
        cls, place: Coordinates, seen: RankEvidence, *, is_dead_step: bool, has_own_fault: bool, can_replay: bool
    ) -> RankSummary:
        """What this rank has to tell."""
        return cls(
            rank=place.rank,
            tp=place.tp,
            cp=place.cp,
            ep=place.ep,
            dp=place.dp,
            pp=place.pp,
            expert_tp=place.expert_tp,
            expert_dp=place.expert_dp,
            bad_before=int(seen.bad_before),
            bad_after=int(seen.bad_after),
            bad_loss=int(seen.bad_loss),
            suspicious_before=int(seen.suspicious_before),
            suspicious_after=int(seen.suspicious_after),
            dead_step=int(is_dead_step),
            own_fault=int(has_own_fault),
            can_replay=int(can_replay),
        )

    def to_ints(self) -> tuple[int, ...]:
        """The row, in the order of the fields."""
        return astuple(self)

    @classmethod
    def from_ints(cls, row: Sequence[int]) -> RankSummary:
        """The way back."""
        assert len(row) == len(fields(cls))
        return cls(*row)

    @property
    def coordinates(self) -> Coordinates:
        return Coordinates(self.rank, self.tp, self.cp, self.ep, self.dp, self.pp, self.expert_tp, self.expert_dp)
