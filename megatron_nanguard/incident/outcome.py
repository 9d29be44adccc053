"""What all ranks conclude from the same reports: the kind of incident and the rank sets, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_nanguard.incident.rank_summary import RankSummary
from megatron_nanguard.records.coordinates import ParallelSizes, RankGroup
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import Kind, RankSets
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.topology.rank_sets import describe


@dataclass(frozen=True)
class ExchangeOutcome:
    """The same on every rank.

    Attributes:
        ranks: bad before the reduction, bad only after it, clean.
        groups: the first set as products of axes; infected_groups: the second.
        notes: what the reports say besides.
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


def conclude(reports: Sequence[RankSummary], sizes: ParallelSizes) -> ExchangeOutcome:
    """Sort the ranks. A loss counts as bad before; suspicion counts only where no element is bad anywhere."""
    kind = _kind(reports)
    before, after = _sets(kind, reports)
    places = {report.rank: report.coordinates for report in reports}
    clean = tuple(report.rank for report in reports if report.rank not in before and report.rank not in after)
    faulty = [report.rank for report in reports if report.own_fault]
    told = phrase("the guard itself failed on {ranks}; what is said there is incomplete", ranks=name_ranks(faulty))
    return ExchangeOutcome(
        kind,
        RankSets(tuple(sorted(before)), tuple(sorted(after)), clean),
        describe(before, places, sizes) if before else (),
        describe(after, places, sizes) if after else (),
        (told,) if faulty else (),
        tuple(report.rank for report in reports if report.own_fault or not report.can_replay),
    )


def _kind(reports: Sequence[RankSummary]) -> Kind:
    if any(report.bad_before for report in reports):
        return Kind.GRADIENT_BEFORE_REDUCTION
    if any(report.bad_after for report in reports):
        return Kind.GRADIENT_AFTER_REDUCTION
    if any(report.bad_loss for report in reports):
        return Kind.LOSS
    if any(report.suspicious_before or report.suspicious_after for report in reports):
        return Kind.NORM_OVERFLOW
    return Kind.DEAD_STEP


def _sets(kind: Kind, reports: Sequence[RankSummary]) -> tuple[set[int], set[int]]:
    if kind is Kind.NORM_OVERFLOW:
        before = {r.rank for r in reports if r.suspicious_before}
        after = {r.rank for r in reports if r.suspicious_after}
    else:
        counts_loss = kind is not Kind.GRADIENT_AFTER_REDUCTION
        before = {r.rank for r in reports if r.bad_before or (counts_loss and r.bad_loss)}
        after = {r.rank for r in reports if r.bad_after}
    return before, after - before
