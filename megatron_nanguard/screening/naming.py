"""A rank as an accusation names it: `rank 5 (TP 1, PP 1, DP 0)`."""

from __future__ import annotations

from collections.abc import Callable

from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.topology.rank_sets import describe

Naming = Callable[[int], str]


def naming_in(sizes: ParallelSizes) -> Naming:
    """Names of the ranks of a layout."""
    places = {rank: Coordinates.in_default_order(rank, sizes) for rank in range(sizes.world)}
    return lambda rank: describe([rank], places, sizes)[0].words
