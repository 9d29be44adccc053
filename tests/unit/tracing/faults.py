"""Functions with a known fault, and functions without a fault that also make infinities or NaNs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def log_of_negative(x: Tensor) -> Tensor:
    """Make a NaN in the forward, in the operator log."""
    return torch.log(-x.abs() - 1)


def clamped_exp(x: Tensor) -> Tensor:
    """Overflow to Inf in the forward and clamp it; the backward makes a NaN as Inf times 0."""
    return x * torch.exp(x + 200).clamp(max=1.0)


def discarded(x: Tensor) -> Tensor:
    """Make a NaN that a `where` does not select."""
    return torch.where(x > 100, torch.log(-x.detach().abs() - 1), x)


def masked(x: Tensor) -> Tensor:
    """Apply a healthy mask of -inf."""
    return torch.softmax(x.masked_fill(torch.eye(*x.shape) > 0, -math.inf), -1)


def fully_masked(x: Tensor) -> Tensor:
    """Apply a mask that covers whole rows, so that softmax makes NaN."""
    return torch.softmax(x.masked_fill(torch.ones_like(x) > 0, -math.inf), -1)


def write_nan(tensor: Tensor, *index: Any) -> None:
    """Write NaN past the dispatcher, as a fused kernel or the network does."""
    tensor.detach().numpy()[index] = math.nan


class NanBackward(torch.autograd.Function):
    """Identity whose backward takes the log of a negative number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.log(-grad.abs() - 1)


class UnseenKernel(torch.autograd.Function):
    """Copies past the dispatcher into memory from `empty`, with one NaN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out.detach().numpy()[:] = x.detach().numpy()
        write_nan(out, 1, 2)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class UnseenInPlace(torch.autograd.Function):
    """Runs a finite operator, then writes a NaN into its result past the dispatcher."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x * 1.0
        write_nan(out, 1, 2)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class HalfWritten(torch.autograd.Function):
    """Copies all rows but the last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out[:-1].copy_(x[:-1])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class FusedAttention(torch.autograd.Function):
    """Stands for a fused kernel of [tokens, heads, width]; spoils rows 1 to 2 of head 2 of dK past the dispatcher."""

    @staticmethod
    def forward(ctx: Any, scale: float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.scale = scale
        return (q + k + v) * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        grads = [grad * ctx.scale for _ in range(3)]
        write_nan(grads[1], slice(1, 3), 2)
        return None, *grads


class FusedWgrad(torch.autograd.Function):
    """A linear layer whose backward adds the weight's gradient into `main_grad` past the dispatcher."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, spoils: Callable[[], bool]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.spoils = weight, spoils
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        ctx.weight.main_grad.numpy()[:] += grad.numpy().T @ x.detach().numpy()
        if ctx.spoils():
            write_nan(ctx.weight.main_grad, 3, 0)
        return grad @ ctx.weight, None, None
