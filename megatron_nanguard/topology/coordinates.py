"""Read where this rank stands, and how large each axis is, off its model chunks."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.megatron_api.parallel import global_rank, position, world_size
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes


def read(chunks: Sequence[ModelChunk]) -> tuple[Coordinates, ParallelSizes]:
    """Return this rank's place and the layout.

    Args:
        chunks: model chunks of this rank; all stand at the same place, so the first one is asked.
    """
    at = {axis: position(chunks[0], axis) for axis in ("tp", "cp", "ep", "dp", "pp", "expert_tp", "expert_dp")}
    coordinates = Coordinates(rank=global_rank(), **{axis: place.rank for axis, place in at.items()})
    axes = {axis: place.size for axis, place in at.items()}
    sizes = ParallelSizes(world=world_size(), **axes, vpp=len(chunks))
    return coordinates, sizes
