"""Bad parameters of many ranks, joined by their global names, and losses, joined by micro-batch.

In the incident the parameter nearest to the loss comes first: if the fault arose in the backward pass, this one is the
nearest to its origin.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.incident import MergedParameter, MicrobatchLosses
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import BadParameter, Microbatch, Postmortem
from megatron_nanguard.records.run.parameters import depth_of
from megatron_nanguard.records.trace import pattern_of

LISTED_PARAMETERS = 512
LISTED_RANKS = 64
GATHERED_LISTS = 64
"""Different lists that are held back; ranks with an equal list are joined to it meanwhile."""

Where = Literal["local", "reduced"]


@dataclass
class _JoinedParameter:
    has_nan: bool = False
    has_inf: bool = False
    norm: float | None = None
    nan_count: int | None = None
    inf_count: int | None = None
    places: list[Coordinates] = field(default_factory=list)


@dataclass
class _EqualLists:
    """A list of bad parameters, and the ranks whose list is this very object."""

    where: Where
    parameters: tuple[BadParameter, ...]
    places: list[Coordinates] = field(default_factory=list)


class ParameterMerger:
    """Joins the bad parameters of all ranks by name.

    The reader of the files gives equal lists as one object. Such a list is joined once for all ranks that have it. This
    saves most of the work in a large run, where the ranks of a group have the same bad parameters.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[Where, str], _JoinedParameter] = {}
        self._equal_lists: dict[tuple[Where, int], _EqualLists] = {}
        self._cut_ranks = 0

    def add(self, postmortem: Postmortem) -> None:
        """Add the bad parameters of one rank, before and after the reduction."""
        place = postmortem.coordinates
        self._gather("local", postmortem.local.parameters, place)
        self._gather("reduced", postmortem.reduced.parameters, place)
        if postmortem.local.truncated or postmortem.reduced.truncated:
            self._cut_ranks += 1

    def merged(self, sizes: ParallelSizes) -> tuple[tuple[MergedParameter, ...], int, tuple[str, ...]]:
        """Join the lists that are still waiting, and return the parameters.

        Args:
            sizes: the parallel layout, for the labels of ranks.
        Returns:
            The parameters, nearest to the loss first; how many are left out; notes.
        """
        self._join_all()
        ordered = sorted(self._seen, key=lambda key: (key[0] == "reduced", -depth_of(key[1])))
        listed = tuple(_merge_parameter(*key, self._seen[key], sizes) for key in ordered[:LISTED_PARAMETERS])
        note = phrase("lists of bad parameters that were cut short: {number}", number=self._cut_ranks)
        return listed, len(ordered) - len(listed), (note,) if self._cut_ranks else ()

    def _gather(self, where: Where, parameters: tuple[BadParameter, ...], place: Coordinates) -> None:
        """Store the place of a rank with those of other ranks that have the same list."""
        if not parameters:
            return
        key = where, id(parameters)
        if key not in self._equal_lists:
            if len(self._equal_lists) >= GATHERED_LISTS:
                self._join_all()
            self._equal_lists[key] = _EqualLists(where, parameters)
        self._equal_lists[key].places.append(place)

    def _join_all(self) -> None:
        for equal in self._equal_lists.values():
            for parameter in equal.parameters:
                self._join(equal.where, parameter, equal.places)
        self._equal_lists.clear()

    def _join(self, where: Where, parameter: BadParameter, places: list[Coordinates]) -> None:
        seen = self._seen.setdefault((where, parameter.name), _JoinedParameter())
        seen.has_nan |= "nan" in parameter.pattern
        seen.has_inf |= "inf" in parameter.pattern.split("+")
        seen.norm = _worst(seen.norm, parameter.norm)
        seen.nan_count = _added(seen.nan_count, parameter.nan_count, len(places))
        seen.inf_count = _added(seen.inf_count, parameter.inf_count, len(places))
        seen.places.extend(places)


def _merge_parameter(where: Where, name: str, seen: _JoinedParameter, sizes: ParallelSizes) -> MergedParameter:
    places = heapq.nsmallest(LISTED_RANKS, seen.places, key=lambda place: place.rank)
    return MergedParameter(
        name=name,
        where=where,
        pattern=pattern_of(seen.has_nan, seen.has_inf),
        norm=seen.norm,
        nan_count=seen.nan_count,
        inf_count=seen.inf_count,
        ranks=tuple(place.rank for place in places),
        num_ranks=len(seen.places),
        coords=tuple(place.label(sizes) for place in places),
    )


def _worst(first: float | None, second: float | None) -> float | None:
    known = [norm for norm in (first, second) if norm is not None]
    return max(known, key=lambda norm: (math.isnan(norm), norm), default=None)


def _added(total: int | None, count: int | None, times: int) -> int | None:
    """Add a count that several ranks have; None while no rank could count."""
    return total if count is None else (total or 0) + count * times


@dataclass
class _LossRange:
    num_ranks: int = 0
    lowest: float = math.inf
    highest: float = -math.inf
    nonfinite_ranks: list[int] = field(default_factory=list)


class LossMerger:
    """Joins the losses of all ranks by micro-batch; ranks that compute no loss add nothing."""

    def __init__(self) -> None:
        self._seen: dict[int, _LossRange] = {}

    def add(self, rank: int, microbatches: Iterable[Microbatch]) -> None:
        """Add the micro-batches of one rank."""
        for microbatch in microbatches:
            if microbatch.loss is None:
                continue
            losses = self._seen.setdefault(microbatch.index, _LossRange())
            losses.num_ranks += 1
            if math.isfinite(microbatch.loss):
                losses.lowest = min(losses.lowest, microbatch.loss)
                losses.highest = max(losses.highest, microbatch.loss)
            else:
                losses.nonfinite_ranks.append(rank)

    def merged(self) -> tuple[MicrobatchLosses, ...]:
        """Return the losses by micro-batch, in the order of the step."""
        return tuple(_merge_losses(index, losses) for index, losses in sorted(self._seen.items()))


def _merge_losses(index: int, losses: _LossRange) -> MicrobatchLosses:
    some_finite = losses.num_ranks > len(losses.nonfinite_ranks)
    return MicrobatchLosses(
        index=index,
        num_ranks=losses.num_ranks,
        lowest=losses.lowest if some_finite else None,
        highest=losses.highest if some_finite else None,
        nonfinite_ranks=tuple(sorted(losses.nonfinite_ranks)),
    )
