"""What bucket groups and parameters remember between the schedule call and the optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from megatron_nanguard.megatron_api.buffers import bucket_groups, grad_buffers
from megatron_nanguard.megatron_api.model_chunks import changed_config
from megatron_nanguard.megatron_api.protocols import AnyBucketGroup, ModelChunk, ModelParameter

FIELDS = (
    *("is_last_microbatch", "is_first_batch", "params_with_grad"),
    *("golden_per_param_grad_ready_counts", "per_param_grad_ready_counts"),
    *("grad_reduce_handle", "grad_reduce_finished", "communication_handle", "is_communication_outstanding"),
    *("param_gather_handle", "param_gather_dispatched"),
)
"""Attributes of bucket groups, in 0.8 of buckets and buffers; each release has some of them."""


def zero_gradients(chunks: Sequence[ModelChunk]) -> None:
    """Zero the buffers, as a training loop does before the schedule call. The bucket groups begin a next step with it.

    Not through the optimizer: ``zero_grad`` of 0.8 dispatches the first gather of parameters.
    """
    for chunk in chunks:
        chunk.zero_grad_buffer()


def keep(chunks: Sequence[ModelChunk]) -> Callable[[], None]:
    """Save counters and marks, not gradients; the returned function restores them and may be called repeatedly.

    Source: megatron/core/distributed/distributed_data_parallel.py, zero_grad_buffer, which moves on the counters
    """
    owners = [owner for chunk in chunks for owner in (*bucket_groups(chunk), *grad_buffers(chunk))]
    kept = [(owner, {name: _shallow(vars(owner)[name]) for name in FIELDS if name in vars(owner)}) for owner in owners]
    params = [cast("ModelParameter", param) for chunk in chunks for param in chunk.parameters()]
    gradients = [(param, param.grad, getattr(param, "grad_added_to_main_grad", None)) for param in params]
    forced = [(chunk, vars(chunk)["force_all_reduce"]) for chunk in chunks if "force_all_reduce" in vars(chunk)]

    def put_back() -> None:
        for owner, noted in kept:
            vars(owner).update({name: _shallow(value) for name, value in noted.items()})
        for param, grad, is_added in gradients:
            param.grad = grad
            if is_added is not None:
                param.grad_added_to_main_grad = is_added
        for chunk, force in forced:
            chunk.force_all_reduce = force

    return put_back


def is_dispatched(group: AnyBucketGroup) -> bool:
    """Say whether a reduction was started and not yet waited for: the gradients are no longer this rank's own.

    Source: megatron/core/distributed/param_and_grad_buffer.py: ``grad_reduce_handle``, before 0.10
        ``communication_handle``; from 0.16 on ``start_grad_sync`` may be called again in the first batch
    """
    handle = getattr(group, "grad_reduce_handle", getattr(group, "communication_handle", None))
    return handle is not None


@contextmanager
def without_weight_gather(chunks: Sequence[ModelChunk]) -> Iterator[None]:
    """Gather no weights inside this context: a gather would repair a weight that went bad after the last one.

    The bucket groups stay marked as gathered; the function that `keep` returned restores the marks.

    Source: megatron/core/distributed/param_and_grad_buffer.py, finish_param_sync, which gathers what is not marked;
        megatron/core/pipeline_parallel/schedules.py, which gathers by ``config.param_sync_func`` ahead of time
    """
    for group in (group for chunk in chunks for group in bucket_groups(chunk)):
        if "param_gather_dispatched" in vars(group):
            vars(group).update(param_gather_dispatched=True, param_gather_handle=None)
    with changed_config(chunks, "param_sync_func", lambda gather: None):
        yield


def _shallow(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, dict | set) else value
