"""By which communication a rank went bad that was not bad itself.

Told from the layout alone: which group the rank shares with a rank that was bad before. In the order of a step the
data-parallel reduction comes first, then what Megatron does in `finalize_model_grads`.

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


class Carrier(NamedTuple):
    """One communication that gradients pass through.

    Attributes:
        by: its name.
        group: what the members of a group have in common; None for a rank that takes no part.
        words: the group for a person.
    """

    by: str
    group: Callable[[Coordinates, ParallelSizes], Group | None]
    words: str


def _replicas(place: Coordinates, sizes: ParallelSizes) -> Group:
    return place.tp, place.pp


def _stage(place: Coordinates, sizes: ParallelSizes) -> Group:
    return (place.pp,)


def _embedding_stages(place: Coordinates, sizes: ParallelSizes) -> Group | None:
    return (place.tp,) if place.pp in (0, sizes.pp - 1) else None


CARRIERS = (
    Carrier(phrase("data-parallel reduction"), _replicas, phrase("data-parallel group of tp{tp} pp{pp}")),
    Carrier(phrase("gradient all-reduce over tensor parallel ranks"), _stage, phrase("pipeline stage {pp}")),
    Carrier(
        phrase("gradient all-reduce of tied embeddings"), _embedding_stages, phrase("first and last stage of tp{tp}")
    ),
)
"""In the order of a step; the first that joins a rank to one that was bad before is named."""


def trace_infection(
    ranks: RankSets, places: Mapping[int, Coordinates], sizes: ParallelSizes
) -> tuple[tuple[Infected, ...], tuple[str, ...]]:
    """Name the carrier for every infected rank whose place is known.

    Args:
        ranks: all ranks by what happened to them.
        places: coordinates of the ranks that wrote a post-mortem.
        sizes: the parallel layout.
    Returns:
        The infected, at most 64 of them, and a note on how many are left out.
    """
    if not ranks.bad_before:
        return (), ()
    sources = [_by_group(carrier, ranks.bad_before, places, sizes) for carrier in CARRIERS]
    known = [rank for rank in ranks.bad_after_only if rank in places]
    found = tuple(_infected(places[rank], sources, sizes) for rank in known[:LISTED_INFECTED])
    left_out = len(known) - len(found)
    return found, (
        (phrase("{number} more infected ranks, see ranks.bad_after_only", number=left_out),) if left_out else ()
    )


def _by_group(
    carrier: Carrier, bad: tuple[int, ...], places: Mapping[int, Coordinates], sizes: ParallelSizes
) -> Mapping[Group, list[int]]:
    groups: dict[Group, list[int]] = defaultdict(list)
    for rank in bad:
        group = carrier.group(places[rank], sizes) if rank in places else None
        if group is not None:
            groups[group].append(rank)
    return groups


def _infected(place: Coordinates, sources: list[Mapping[Group, list[int]]], sizes: ParallelSizes) -> Infected:
    for carrier, groups in zip(CARRIERS, sources, strict=True):
        group = carrier.group(place, sizes)
        if group is not None and group in groups:
            words = carrier.words.format(tp=place.tp, pp=place.pp)
            return Infected(place.rank, carrier.by, words, tuple(groups[group][:LISTED_SOURCES]))
    return Infected(place.rank, phrase("not known"), "", ())
