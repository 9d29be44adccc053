"""Read the coordinates of this rank and the size of each parallel axis from its model chunks."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.megatron_api.parallel import global_rank, position, world_size
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes


def read(chunks: Sequence[ModelChunk]) -> tuple[Coordinates, ParallelSizes]:
    """Return this rank's coordinates and the sizes of the axes.

    Args:
        chunks: model chunks of this rank; all have the same coordinates, so only the first is read.
    """
    at = {axis: position(chunks[0], axis) for axis in ("tp", "cp", "ep", "dp", "pp", "expert_tp", "expert_dp")}
    coordinates = Coordinates(rank=global_rank(), **{axis: place.rank for axis, place in at.items()})
    axes = {axis: place.size for axis, place in at.items()}
    sizes = ParallelSizes(world=world_size(), **axes, vpp=len(chunks))
    return coordinates, sizes
