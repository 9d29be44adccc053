"""The index of this rank on each parallel axis, from process-group collections, DDP or parallel_state."""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch.distributed import ProcessGroup

from megatron_nanguard.megatron_api.model_chunks import chunk_attribute
from megatron_nanguard.megatron_api.protocols import ModelChunk


class AxisPosition(NamedTuple):
    """A rank's place on one axis: its index and how many there are."""

    rank: int
    size: int


_GETTERS = {
    "tp": ("get_tensor_model_parallel_group",),
    "cp": ("get_context_parallel_group",),
    "ep": ("get_expert_model_parallel_group",),
    "dp": ("get_data_parallel_group",),
    "pp": ("get_pipeline_model_parallel_group",),
    # Experts got a tensor-parallel size of their own in 0.10; before, they are split like everything else.
    "expert_tp": ("get_expert_tensor_parallel_group", "get_tensor_model_parallel_group"),
    "expert_dp": ("get_expert_data_parallel_group", "get_data_modulo_expert_parallel_group"),
}
"""Functions of parallel_state that give the group of an axis; the first that a release has counts."""


def position(chunk: ModelChunk, axis: str) -> AxisPosition:
    """Return this rank's place on one axis.

    Args:
        chunk: a model chunk of this rank, wrapped or not.
        axis: tp, cp, ep, dp, pp, expert_tp or expert_dp.
    Returns:
        From the chunk's `pg_collection`, else DDP's groups, else parallel_state. With none of them the ranks are
        data-parallel replicas of one another.
    Source: megatron/core/process_groups_config.py, distributed_data_parallel.py and parallel_state.py
    """
    name = axis.replace("expert", "expt")  # the field of the collection; DDP calls it `tp_group`, `expt_tp_group`
    # A field that was not set raises on access, so only the instance dictionary is read.
    collection = chunk_attribute(chunk, "pg_collection")
    group = None if collection is None else vars(collection).get(name)
    group = group or chunk_attribute(chunk, f"{name}_group") or _from_parallel_state(axis)
    # With an encoder of its own depth, 0.9 to 0.13 keep a list of pipeline groups.
    if isinstance(group, list):
        group = group[0]
    if group is not None:
        return AxisPosition(group.rank(), group.size())
    if axis in ("dp", "expert_dp") and torch.distributed.is_initialized():
        return AxisPosition(global_rank(), world_size())
    return AxisPosition(0, 1)


def _from_parallel_state(axis: str) -> ProcessGroup | list[ProcessGroup] | None:
    parallel_state = sys.modules.get("megatron.core.parallel_state")
    if parallel_state is None or not parallel_state.model_parallel_is_initialized():
        return None
    for getter in _GETTERS[axis]:
        if hasattr(parallel_state, getter):
            group: ProcessGroup | list[ProcessGroup] = getattr(parallel_state, getter)()
            return group
    return None


def global_rank() -> int:
    """Return the global rank, 0 without torch.distributed."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def world_size() -> int:
    """Return the number of ranks, 1 without torch.distributed."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
