"""Check the numbers of a file that size or index a table; in a damaged file they can have any value."""

from __future__ import annotations

import math

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.channel import MOST_RANKS
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.incident import Incident


def check_incident(incident: Incident, source: str) -> None:
    """Check the layout of a merged incident, that its ranks are inside the layout, and that confidences are 0 to 1.

    Raises:
        PostmortemError: names the file, the key, the value and the expected range.
    """
    check_sizes(incident.sizes, source)
    sets = incident.ranks
    for name, ranks in vars(sets).items():
        outside = [rank for rank in ranks if not 0 <= rank < incident.sizes.world]
        if outside:
            raise PostmortemError(
                f"{source}: key ranks.{name} holds {outside[0]}, expected 0 to {incident.sizes.world - 1}"
            )
    for number, cause in enumerate(incident.causes):
        if not 0 <= cause.confidence <= 1:
            raise PostmortemError(f"{source}: key causes[{number}].confidence is {cause.confidence}, expected 0 to 1")


def check_sizes(sizes: ParallelSizes, source: str) -> None:
    """Check that every parallel size, and the number of ranks, is at least 1 and at most MOST_RANKS.

    Raises:
        PostmortemError: names the file, the key, the value and the expected range.
    """
    for axis, size in vars(sizes).items():
        if not 1 <= size <= MOST_RANKS:
            raise PostmortemError(f"{source}: key sizes.{axis} is {size}, expected 1 to {MOST_RANKS}")
    product = math.prod((sizes.tp, sizes.cp, sizes.dp, sizes.pp))
    if product > MOST_RANKS:
        raise PostmortemError(f"{source}: tp, cp, dp and pp make {product} ranks, expected at most {MOST_RANKS}")


def check_place(place: Coordinates, sizes: ParallelSizes, source: str) -> None:
    """Check that a rank and its coordinates are inside the layout.

    Raises:
        PostmortemError: names the file, the key, the value and the expected range.
    """
    if not 0 <= place.rank < sizes.world:
        raise PostmortemError(f"{source}: key coordinates.rank is {place.rank}, expected 0 to {sizes.world - 1}")
    limits = vars(sizes)
    for axis, index in vars(place).items():
        if axis != "rank" and not 0 <= index < limits[axis]:
            raise PostmortemError(f"{source}: key coordinates.{axis} is {index}, expected 0 to {limits[axis] - 1}")
