"""Gradient buffers of a model chunk and their buckets, and gradients that lie outside of any buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor
from torch.nn import Parameter

from megatron_nanguard.megatron_api.protocols import (
    AnyBucketGroup,
    Bucket,
    ModelChunk,
    ParamAndGradBuffer,
    SelfReducingBucket,
)

UNKNOWN_START = -1
"""Start of a local part whose place in the whole parameter cannot be derived from the sharding."""


def grad_buffers(chunk: ModelChunk) -> list[ParamAndGradBuffer]:
    """Return the chunk's gradient buffers, those of experts last; none for FSDP and plain modules.

    Source: megatron/core/distributed/distributed_data_parallel.py: lists that hide `nn.Module.buffers`
    """
    attributes = vars(chunk)
    return [*attributes.get("buffers", ()), *attributes.get("expert_parallel_buffers", ())]


def bucket_groups(chunk: ModelChunk) -> list[AnyBucketGroup]:
    """Return what is communicated together: bucket groups, or in 0.8 the buckets themselves."""
    attributes = vars(chunk)
    if "bucket_groups" not in attributes:
        return [cast("SelfReducingBucket", bucket) for buffer in grad_buffers(chunk) for bucket in buffer.buckets]
    return [*attributes["bucket_groups"], *attributes["expert_parallel_bucket_groups"]]


def buckets(group: AnyBucketGroup) -> list[Bucket]:
    """Return the buckets of a bucket group; in 0.8, where a bucket communicates for itself, that bucket."""
    return list(group.buckets) if hasattr(group, "buckets") else [group]


def has_separate_main_grad(param: Parameter) -> bool:
    """Say whether `main_grad` lies outside the buffer, which then holds a copy in lower precision (0.17 and later)."""
    return getattr(param, "main_grad_copy_in_grad_buffer", None) is not None


def uses_distributed_optimizer(buffer: ParamAndGradBuffer) -> bool:
    """Say whether each rank reduces and owns only its shard of every bucket."""
    return bool(buffer.ddp_config.use_distributed_optimizer)


def owned_range(buffer: ParamAndGradBuffer, bucket: Bucket) -> tuple[int, int]:
    """Return the buffer elements of a bucket that this rank's optimizer consumes.

    Source: megatron/core/distributed/param_and_grad_buffer.py, `shard_buffer`: equal shards over the buffer's
        data-parallel group (that of one optimizer instance, where there are several)
    """
    numel = bucket.grad_data.numel()
    if not uses_distributed_optimizer(buffer):
        return bucket.offset, bucket.offset + numel
    group = buffer.data_parallel_group
    shard = numel // group.size()
    start = bucket.offset + group.rank() * shard
    return start, start + shard


def gradient_tensors(chunks: Sequence[ModelChunk]) -> list[Tensor]:
    """Return every tensor in which gradients are added up: buffers, and from 0.17 on main grads outside of them."""
    found: list[Tensor] = []
    for chunk in chunks:
        for buffer in grad_buffers(chunk):
            found += [buffer.grad_data, *getattr(buffer, "extra_main_grads", ())]
    return found


class LocalGradient(NamedTuple):
    """The part of one gradient that this rank holds.

    Attributes:
        data: [numel], flat, on the training device.
        start: its first element inside the flattened parameter, or UNKNOWN_START.
    """

    data: Tensor
    start: int


def local_gradient(param: Parameter) -> LocalGradient | None:
    """Return the part of the parameter's gradient that lives on this rank; None while there is none.

    Source: megatron/core/distributed/finalize_model_grads.py, `_get_main_grad_attr`
    """
    main_grad: Any = getattr(param, "main_grad", None)
    grad: Any = param.grad if main_grad is None else main_grad
    if grad is None:
        return None
    if grad.is_sparse:
        # Of an embedding of plain torch: the rows that were looked up, in any order.
        return LocalGradient(grad.detach()._values().reshape(-1), UNKNOWN_START)
    if not hasattr(grad, "to_local"):
        return LocalGradient(grad.detach().reshape(-1), 0)
    return LocalGradient(grad.to_local().detach().reshape(-1), _start_of_local(grad))


def _start_of_local(grad: Any) -> int:
    """Return where a DTensor's local part begins, for the split torch's FSDP2 makes: dim 0 over one mesh dimension."""
    if grad.device_mesh.ndim != 1 or not grad.placements[0].is_shard(dim=0):
        return UNKNOWN_START
    rows_per_rank = -(-grad.shape[0] // grad.device_mesh.size())
    first_row: int = min(grad.shape[0], grad.device_mesh.get_local_rank() * rows_per_rank)
    row_numel: int = math.prod(grad.shape[1:])
    return first_row * row_numel
