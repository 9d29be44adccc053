"""The exchange of an incident: each rank sends one row of integers, and all conclude the same from the rows.

The outcome is the kind of incident and the sets of bad ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields

from megatron_nanguard.incident.rank_evidence import Signs, kind_of
from megatron_nanguard.postmortem.merging.incident import ExchangedSets
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.phrase import name_ranks, phrase
from megatron_nanguard.records.postmortem import Kind, RankSets
from megatron_nanguard.topology.rank_sets import describe


@dataclass(frozen=True)
class RankSummary:
    """One row of the exchange.

    Attributes:
        own_fault: the guard failed here; the rest may be incomplete.
        can_replay: the step can be run again here.
    """

    coordinates: Coordinates
    signs: Signs
    own_fault: bool
    can_replay: bool

    def to_ints(self) -> tuple[int, ...]:
        """The row: coordinates, signs and flags in the order of their fields."""
        place, signs, *flags = astuple(self)
        return tuple(map(int, (*place, *signs, *flags)))

    @classmethod
    def from_ints(cls, row: Sequence[int]) -> RankSummary:
        """A row that was received."""
        num_places, num_signs = len(fields(Coordinates)), len(fields(Signs))
        place, flags = row[:num_places], [bool(flag) for flag in row[num_places:]]
        return cls(Coordinates(*place), Signs(*flags[:num_signs]), *flags[num_signs:])


@dataclass(frozen=True)
class ExchangeOutcome(ExchangedSets):
    """What all ranks conclude from the exchange; the same on every rank.

    Attributes:
        notes: what the summaries say besides.
        cannot_replay: ranks that cannot run the step again.
        has_bad_copy: somewhere a model weight is bad and the main parameter it is a copy of is not.
    """

    kind: Kind
    notes: tuple[str, ...] = ()
    cannot_replay: tuple[int, ...] = ()
    has_bad_copy: bool = False


def conclude(summaries: Sequence[RankSummary], sizes: ParallelSizes) -> ExchangeOutcome:
    """Sort the ranks. A loss counts as bad before; suspicion counts only where no element is bad anywhere."""
    kind = kind_of([one.signs for one in summaries])
    places = {one.coordinates.rank: one.coordinates for one in summaries}
    before, after = _sets(kind, {one.coordinates.rank: one.signs for one in summaries})
    faulty = [one.coordinates.rank for one in summaries if one.own_fault]
    note = phrase("the guard itself failed on {ranks}; their evidence is incomplete", ranks=name_ranks(faulty))
    return ExchangeOutcome(
        ranks=RankSets(
            tuple(sorted(before)), tuple(sorted(after)), tuple(rank for rank in places if rank not in before | after)
        ),
        groups=describe(before, places, sizes),
        infected_groups=describe(after, places, sizes),
        kind=kind,
        notes=(note,) if faulty else (),
        cannot_replay=tuple(one.coordinates.rank for one in summaries if one.own_fault or not one.can_replay),
    )


def _sets(kind: Kind, signs: Mapping[int, Signs]) -> tuple[set[int], set[int]]:
    """Ranks that were bad before the reduction, and those bad only after it."""
    if kind is Kind.NORM_OVERFLOW:
        before = {rank for rank, seen in signs.items() if seen.suspicious_before}
        after = {rank for rank, seen in signs.items() if seen.suspicious_after}
    else:
        counts_loss = kind is not Kind.GRADIENT_AFTER_REDUCTION
        before = {rank for rank, seen in signs.items() if seen.bad_before or (counts_loss and seen.bad_loss)}
        after = {rank for rank, seen in signs.items() if seen.bad_after}
    return before, after - before
