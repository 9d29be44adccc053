"""What travels between ranks.

receive_buffer    what has arrived is overwritten before anybody reads it
all_reduce        the sum over the tensor-parallel group is bad on one rank
all_to_all        what comes from rank 0 arrives with a NaN, in the first exchange of the micro-batch
sum_too_large     every rank sends what fits into fp16; the sum over the tensor-parallel group does not
functional_sum    the same by a functional collective
gradient_sum      the same of one gradient over the data-parallel group
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import mpu
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.tensor_parallel import layers
from torch import Tensor

from tests.ranks.seams.when import is_due, is_due_before, is_due_everywhere, is_due_here, spoil, worse

FITS = 4e4
"""Below the 65504 of fp16; twice as much is beyond."""

_inside: list[Any] = []


def install() -> None:
    """Stand between Megatron and the transport."""
    dist.all_reduce = flipped(dist.all_reduce)
    dist.all_to_all_single = shuffled(dist.all_to_all_single)
    P2PCommunicator._communicate = recycled(P2PCommunicator._communicate)
    _ParamAndGradBucketGroup.start_grad_sync = enlarged(_ParamAndGradBucketGroup.start_grad_sync)
    layers.reduce_from_tensor_model_parallel_region = large(layers.reduce_from_tensor_model_parallel_region)


def plant(mlp: Any) -> None:
    """Stand in the way of a layer's second linear layer, whose output is summed over the group."""
    if hasattr(mlp, "linear_fc2"):
        mlp.linear_fc2.register_forward_pre_hook(lambda module, args: _inside.append(module))
        mlp.linear_fc2.register_forward_hook(lambda module, args, output: _inside.clear())


def recycled(communicate: Callable[..., Any]) -> Callable[..., Any]:
    def exchange(*args: Any, **kwargs: Any) -> Any:
        returned = communicate(*args, **kwargs)
        # The receive of the second micro-batch comes before its forward step.
        if is_due_before("receive_buffer") and returned[0] is not None:
            spoil(returned[0], 0, 32)
        return returned

    return exchange


def flipped(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        returned = all_reduce(tensor, *args, **kwargs)
        is_model = tensor.dim() == 3 and kwargs.get("group") is mpu.get_tensor_model_parallel_group()
        if is_model and is_due_here("all_reduce"):
            spoil(tensor, 7, 1)
        return returned

    return reduce


def shuffled(all_to_all: Callable[..., Any]) -> Callable[..., Any]:
    def exchange(output: Tensor, *args: Any, **kwargs: Any) -> Any:
        returned = all_to_all(output, *args, **kwargs)
        if output.is_floating_point() and output.dim() == 2 and is_due_here("all_to_all"):
            spoil(output, 0, 64)
        return returned

    return exchange


def large(reduce: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def summed(share: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if _inside and is_due_everywhere("sum_too_large"):
            share = share + worse(FITS, 1.0)
        if _inside and is_due_everywhere("functional_sum"):
            group = mpu.get_tensor_model_parallel_group().group_name
            mine = torch.full_like(share, worse(FITS, 1.0))
            total = torch.ops._c10d_functional.all_reduce(mine, "sum", group)
            share = share + 0 * torch.ops._c10d_functional.wait_tensor(total)
        return reduce(share, *args, **kwargs)

    return summed


def enlarged(start: Callable[..., Any]) -> Callable[..., Any]:
    def start_grad_sync(group: Any, *args: Any, **kwargs: Any) -> Any:
        if is_due("gradient_sum"):
            group.buckets[0].grad_data[5] = worse(FITS, 1.0)
        return start(group, *args, **kwargs)

    return start_grad_sync
