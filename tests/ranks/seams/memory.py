"""Memory that was never written, was written too late, or still holds old values.

half_written   a kernel writes the rows it has tokens for; the others are masked, too late
idle_expert    a grouped kernel leaves the gradient of an expert without tokens as it found it
early_bucket   a bucket is reduced before the last copy into it is complete, unless operators are slowed down
stale_bucket   a part of the gradient buffer is never emptied, and held a NaN before
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from tests.ranks.seams.when import ACCUSED, is_due, is_due_here, is_first_time, spoil

MARKER = 0x7FA0DEAD
"""What the marker fill leaves in fresh float32 memory."""
BAD_ROW = 20
IDLE_EXPERT = 5


def install() -> None:
    """Stand in the way of the gradient buffers."""
    DistributedDataParallel.zero_grad_buffer = left(DistributedDataParallel.zero_grad_buffer)
    _ParamAndGradBucketGroup.start_grad_sync = too_early(_ParamAndGradBucketGroup.start_grad_sync)


def plant(mlp: Any) -> None:
    """Stand in the way of a layer's MLP and its experts."""
    if hasattr(mlp, "experts"):
        mlp.router.gating = avoiding(mlp.router.gating)
        for expert in mlp.experts.local_experts:
            expert.linear_fc1.forward = grouped(expert.linear_fc1)
    mlp.forward = written(mlp.forward)


def as_found(tensor: Tensor, name: str, first: int = 0) -> Tensor:
    """What fresh memory holds from an element on: a NaN the first time, later 0 or what somebody filled it with."""
    start = tensor.data_ptr() + first * tensor.element_size()
    if is_first_time(name):
        spoil(tensor, first)
    elif ctypes.c_uint32.from_address(start).value != MARKER:
        ctypes.memset(start, 0, (tensor.numel() - first) * tensor.element_size())
    return tensor


def written(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        output, bias = forward(*args, **kwargs)
        return half_written(output) if is_due_here("half_written") else output, bias

    return run


def half_written(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[:BAD_ROW].copy_(x[:BAD_ROW])
    as_found(out, "half_written", BAD_ROW * x[0].numel())
    mask = torch.zeros_like(x)
    return x + out * mask


class GroupedLinear(torch.autograd.Function):
    """The weight; its gradient is written only where there are tokens."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, num_tokens: int) -> Tensor:
        ctx.num_tokens = num_tokens
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (grad if ctx.num_tokens else as_found(torch.empty_like(grad), "idle_expert")), None


def grouped(linear: Any) -> Callable[..., Any]:
    forward = linear.forward

    def run(tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_due_here("idle_expert"):
            # Found before the parameter of that name.
            linear.__dict__["weight"] = GroupedLinear.apply(linear._parameters["weight"], tokens.shape[0])
        returned = forward(tokens, *args, **kwargs)
        linear.__dict__.pop("weight", None)
        return returned

    return run


def avoiding(gating: Callable[..., Any]) -> Callable[..., Any]:
    """Logits with which no token goes to the idle expert."""

    def logits(*args: Any, **kwargs: Any) -> Tensor:
        found: Tensor = gating(*args, **kwargs)
        is_idle = torch.arange(found.shape[-1]) == IDLE_EXPERT
        return found.masked_fill(is_idle, -1e4) if is_due("idle_expert") else found

    return logits


def too_early(start: Callable[..., Any]) -> Callable[..., Any]:
    def start_grad_sync(group: Any, *args: Any, **kwargs: Any) -> Any:
        if is_due("early_bucket") and ACCUSED and _get_current_dispatch_mode() is None:
            spoil(group.buckets[0].grad_data, group.buckets[0].grad_data.numel() - 4096)
        return start(group, *args, **kwargs)

    return start_grad_sync


def left(zero_grad_buffer: Callable[..., Any]) -> Callable[..., Any]:
    def zero(chunk: Any) -> None:
        zero_grad_buffer(chunk)
        if is_due("stale_bucket") and ACCUSED:
            spoil(chunk.buffers[0].grad_data, 0, 8)

    return zero
