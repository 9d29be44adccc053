"""The exchange of an incident: each rank sends one row of integers, and all conclude the same from the rows.

The outcome is the kind of incident and the sets of bad ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from megatron_nanguard.incident.rank_evidence import RankEvidence
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes, RankGroup
from megatron_nanguard.records.phrase import name_ranks, phrase
from megatron_nanguard.records.postmortem import Kind, RankSets
from megatron_nanguard.topology.rank_sets import describe


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
        """The row of this rank."""
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
        """A row that was received."""
        assert len(row) == len(fields(cls))
        return cls(*row)

    @property
    def coordinates(self) -> Coordinates:
        return Coordinates(self.rank, self.tp, self.cp, self.ep, self.dp, self.pp, self.expert_tp, self.expert_dp)


@dataclass(frozen=True)
class ExchangeOutcome:
    """What all ranks conclude from the exchange; the same on every rank.

    Attributes:
        ranks: bad before the reduction, bad only after it, clean.
        groups: the first set as products of axes; infected_groups: the second.
        notes: what the summaries say besides.
        cannot_replay: ranks that cannot run the step again.
        has_bad_copy: somewhere a model weight is bad and the main parameter it is a copy of is not.
    """

    kind: Kind
    ranks: RankSets
    groups: tuple[RankGroup, ...]
    infected_groups: tuple[RankGroup, ...]
    notes: tuple[str, ...]
    cannot_replay: tuple[int, ...] = ()
    has_bad_copy: bool = False

    @property
    def all_can_replay(self) -> bool:
        """Every rank can run the step again."""
        return not self.cannot_replay


def conclude(summaries: Sequence[RankSummary], sizes: ParallelSizes) -> ExchangeOutcome:
    """Sort the ranks. A loss counts as bad before; suspicion counts only where no element is bad anywhere."""
    kind = _kind(summaries)
    before, after = _sets(kind, summaries)
    places = {one.rank: one.coordinates for one in summaries}
    clean = tuple(one.rank for one in summaries if one.rank not in before and one.rank not in after)
    faulty = [one.rank for one in summaries if one.own_fault]
    note = phrase("the guard itself failed on {ranks}; their evidence is incomplete", ranks=name_ranks(faulty))
    return ExchangeOutcome(
        kind,
        RankSets(tuple(sorted(before)), tuple(sorted(after)), clean),
        describe(before, places, sizes) if before else (),
        describe(after, places, sizes) if after else (),
        (note,) if faulty else (),
        tuple(one.rank for one in summaries if one.own_fault or not one.can_replay),
    )


def _kind(summaries: Sequence[RankSummary]) -> Kind:
    if any(one.bad_before for one in summaries):
        return Kind.GRADIENT_BEFORE_REDUCTION
    if any(one.bad_after for one in summaries):
        return Kind.GRADIENT_AFTER_REDUCTION
    if any(one.bad_loss for one in summaries):
        return Kind.LOSS
    if any(one.suspicious_before or one.suspicious_after for one in summaries):
        return Kind.NORM_OVERFLOW
    return Kind.DEAD_STEP


def _sets(kind: Kind, summaries: Sequence[RankSummary]) -> tuple[set[int], set[int]]:
    if kind is Kind.NORM_OVERFLOW:
        before = {r.rank for r in summaries if r.suspicious_before}
        after = {r.rank for r in summaries if r.suspicious_after}
    else:
        counts_loss = kind is not Kind.GRADIENT_AFTER_REDUCTION
        before = {r.rank for r in summaries if r.bad_before or (counts_loss and r.bad_loss)}
        after = {r.rank for r in summaries if r.bad_after}
    return before, after - before
