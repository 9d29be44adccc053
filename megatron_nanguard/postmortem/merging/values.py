"""Bad parameters of many ranks, joined by their global names.

In the incident they stand nearest to the loss first: where the fault came up in backward, the first one is nearest to
its origin.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Literal

from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.incident import MergedParameter
from megatron_nanguard.records.parameters import depth_of
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import BadParameter, Pattern, Postmortem

LISTED_PARAMETERS = 512
LISTED_RANKS = 64
GATHERED_LISTS = 64
"""Lists that are held until ranks with the same one were met."""

Where = Literal["local", "reduced"]


@dataclass
class _Seen:
    has_nan: bool = False
    has_inf: bool = False
    norm: float | None = None
    nan_count: int | None = None
    inf_count: int | None = None
    places: list[Coordinates] = field(default_factory=list)


@dataclass
class _Alike:
    """Ranks that gave the same list, the very same object."""

    where: Where
    parameters: tuple[BadParameter, ...]
    places: list[Coordinates] = field(default_factory=list)


class ParameterMerger:
    """Collects bad parameters rank by rank."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Where, str], _Seen] = {}
        self._alike: dict[tuple[Where, int], _Alike] = {}
        self._cut_ranks = 0

    def add(self, postmortem: Postmortem) -> None:
        """Take the bad parameters of one rank, before and after the reduction."""
        place = postmortem.coordinates
        self._gather("local", postmortem.local.parameters, place)
        self._gather("reduced", postmortem.reduced.parameters, place)
        if postmortem.local.truncated or postmortem.reduced.truncated:
            self._cut_ranks += 1

    def merged(self, sizes: ParallelSizes) -> tuple[tuple[MergedParameter, ...], int, tuple[str, ...]]:
        """The parameters, how many names are left out, and what a reader should know of the lists.

        Args:
            sizes: the parallel layout, for the names of places.
        """
        self._join_all()
        ordered = sorted(self._seen, key=_nearest_to_loss)
        listed = tuple(_merge(*key, self._seen[key], sizes) for key in ordered[:LISTED_PARAMETERS])
        notes = (
            (phrase("lists of bad parameters that were cut short: {number}", number=self._cut_ranks),)
            if self._cut_ranks
            else ()
        )
        return listed, len(ordered) - len(listed), notes

    def _gather(self, where: Where, parameters: tuple[BadParameter, ...], place: Coordinates) -> None:
        """Put a rank beside those with the same list: replicas have one, and it is joined once for all of them."""
        if not parameters:
            return
        key = where, id(parameters)
        if key not in self._alike:
            if len(self._alike) >= GATHERED_LISTS:
                self._join_all()
            self._alike[key] = _Alike(where, parameters)
        self._alike[key].places.append(place)

    def _join_all(self) -> None:
        for alike in self._alike.values():
            for parameter in alike.parameters:
                self._join(alike.where, parameter, alike.places)
        self._alike.clear()

    def _join(self, where: Where, parameter: BadParameter, places: list[Coordinates]) -> None:
        seen = self._seen.setdefault((where, parameter.name), _Seen())
        seen.has_nan |= "nan" in parameter.pattern
        seen.has_inf |= "inf" in parameter.pattern.split("+")
        seen.norm = _worst(seen.norm, parameter.norm)
        seen.nan_count = _sum(seen.nan_count, _times(parameter.nan_count, len(places)))
        seen.inf_count = _sum(seen.inf_count, _times(parameter.inf_count, len(places)))
        seen.places.extend(places)


def _nearest_to_loss(key: tuple[Where, str]) -> tuple[bool, float]:
    where, name = key
    return where == "reduced", -depth_of(name)


def _merge(where: Where, name: str, seen: _Seen, sizes: ParallelSizes) -> MergedParameter:
    places = heapq.nsmallest(LISTED_RANKS, seen.places, key=lambda place: place.rank)
    return MergedParameter(
        name=name,
        where=where,
        pattern=_pattern(seen),
        norm=seen.norm,
        nan_count=seen.nan_count,
        inf_count=seen.inf_count,
        ranks=tuple(place.rank for place in places),
        num_ranks=len(seen.places),
        coords=tuple(place.label(sizes) for place in places),
    )


def _pattern(seen: _Seen) -> Pattern:
    if seen.has_nan and seen.has_inf:
        return "nan+inf"
    if seen.has_nan:
        return "nan"
    return "inf" if seen.has_inf else "finite"


def _worst(first: float | None, second: float | None) -> float | None:
    if first is None or second is None:
        return second if first is None else first
    if math.isnan(first) or math.isnan(second):
        return math.nan
    return max(first, second)


def _times(count: int | None, ranks: int) -> int | None:
    return None if count is None else count * ranks


def _sum(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second
