"""Autograd functions whose backward is wrong.

fused_attention  stands for flash-attention; its backward spoils some rows of the keys' gradient in one head
large_gradient   what comes back fits fp16 at a low loss scale alone
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.ranks.seams.when import is_due, is_due_here, spoil, worse

HEAD, ROWS = 2, range(5, 8)
LARGE = 2e4


def plant(layer: Any) -> None:
    """Stand in the way of a layer's attention and MLP."""
    core = layer.self_attention.core_attention
    core.forward = attention(core.forward)
    layer.mlp.forward = enlarged(layer.mlp.forward)


class FlashAttnFunc(torch.autograd.Function):
    """From and to [batch, seq, head, dim], under the name and signature that flash-attention has."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool
    ) -> Tensor:
        weights = probabilities(q, k, softmax_scale)
        ctx.save_for_backward(q, k, v, weights)
        ctx.softmax_scale = softmax_scale
        return torch.einsum("bnst,btnh->bsnh", weights, v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        grad_weights = torch.einsum("bsnh,btnh->bnst", grad, v)
        inner = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True)) * ctx.softmax_scale
        grad_key = torch.einsum("bnst,bsnh->btnh", inner, q).contiguous()
        for sample in range(grad_key.shape[0]):
            for row in ROWS:
                spoil(grad_key[sample, row, HEAD])
        grad_query, grad_value = (
            torch.einsum("bnst,btnh->bsnh", inner, k),
            torch.einsum("bnst,bsnh->btnh", weights, grad),
        )
        return grad_query, grad_key, grad_value, None, None, None


def probabilities(q: Tensor, k: Tensor, scale: float) -> Tensor:
    scores = torch.einsum("bsnh,btnh->bnst", q, k) * scale
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -math.inf).softmax(-1)


def attention(forward: Callable[..., Any]) -> Callable[..., Any]:
    """From [seq, batch, head, dim] to what flash-attention takes, and back."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not is_due("fused_attention"):
            return forward(query, key, value, *args, **kwargs)
        q, k, v = (tensor.transpose(0, 1) for tensor in (query, key, value))
        context = FlashAttnFunc.apply(q, k, v, 0.0, q.shape[-1] ** -0.5, True).transpose(0, 1)
        return context.reshape(*context.shape[:2], -1)

    return attend


class LargeGradient(torch.autograd.Function):
    """Identity; its gradient is far too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * worse(LARGE, 1.0)


def enlarged(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        output, bias = forward(*args, **kwargs)
        return LargeGradient.apply(output) if is_due_here("large_gradient") else output, bias

    return run
