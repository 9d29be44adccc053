"""Name the communication that made a rank's gradients bad, if they were good before the reduction.

The layout alone decides: the rank was infected in the first communication in which its group has a rank that was bad
earlier. In a step the data-parallel reduction comes first, then the all-reduces in `finalize_model_grads`.

Source: megatron/core/distributed/finalize_model_grads.py, finalize_model_grads
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.incident import Infected
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import RankSets

LISTED_INFECTED = 64
LISTED_SOURCES = 8

Group = tuple[int, ...]


class GradientReduction(NamedTuple):
    """One communication in which ranks combine their gradients.

    Attributes:
        name: name of the communication in the report.
        group: gives the coordinates that are equal for all members of a group; None for a rank that takes no part.
        words: describes the group in the report.
    """

    name: str
    group: Callable[[Coordinates, ParallelSizes], Group | None]
    words: str


def _replicas(place: Coordinates, sizes: ParallelSizes) -> Group:
    return place.tp, place.pp


def _stage(place: Coordinates, sizes: ParallelSizes) -> Group:
    return (place.pp,)


def _embedding_stages(place: Coordinates, sizes: ParallelSizes) -> Group | None:
    return (place.tp,) if place.pp in (0, sizes.pp - 1) else None


GRADIENT_REDUCTIONS = (
    GradientReduction(phrase("data-parallel reduction"), _replicas, phrase("data-parallel group of tp{tp} pp{pp}")),
    GradientReduction(phrase("gradient all-reduce over tensor parallel ranks"), _stage, phrase("pipeline stage {pp}")),
    GradientReduction(
        phrase("gradient all-reduce of tied embeddings"), _embedding_stages, phrase("first and last stage of tp{tp}")
    ),
)
"""In the order of a step."""


def trace_infection(
    ranks: RankSets, places: Mapping[int, Coordinates], sizes: ParallelSizes
) -> tuple[tuple[Infected, ...], tuple[str, ...]]:
    """Name the communication that infected each infected rank whose coordinates are known.

    Args:
        ranks: all ranks, grouped by what happened to them.
        places: coordinates of the ranks that wrote a post-mortem.
        sizes: the parallel layout.
    Returns:
        One entry per infected rank, at most 64, and a note on how many are left out.
    """
    if not ranks.bad_before:
        return (), ()
    sources = [_by_group(reduction, ranks.bad_before, places, sizes) for reduction in GRADIENT_REDUCTIONS]
    known = [rank for rank in ranks.bad_after_only if rank in places]
    found = tuple(_infected(places[rank], sources, sizes) for rank in known[:LISTED_INFECTED])
    left_out = len(known) - len(found)
    note = phrase("{number} more infected ranks, see ranks.bad_after_only", number=left_out)
    return found, (note,) if left_out else ()


def _by_group(
    reduction: GradientReduction, bad: tuple[int, ...], places: Mapping[int, Coordinates], sizes: ParallelSizes
) -> Mapping[Group, list[int]]:
    """Map each group of a communication to its members that were bad before this communication."""
    groups: dict[Group, list[int]] = defaultdict(list)
    for rank in bad:
        group = reduction.group(places[rank], sizes) if rank in places else None
        if group is not None:
            groups[group].append(rank)
    return groups


def _infected(place: Coordinates, sources: list[Mapping[Group, list[int]]], sizes: ParallelSizes) -> Infected:
    for reduction, groups in zip(GRADIENT_REDUCTIONS, sources, strict=True):
        group = reduction.group(place, sizes)
        if group is not None and group in groups:
            words = reduction.words.format(tp=place.tp, pp=place.pp)
            return Infected(place.rank, reduction.name, words, tuple(groups[group][:LISTED_SOURCES]))
    return Infected(place.rank, phrase("not known"), "", ())
