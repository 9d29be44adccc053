"""References of activation functions, with a bias before them or token weights after them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor


def gelu(*, input: Tensor, bias: Tensor | None = None, **_: object) -> Tensor:
    """Gelu after a bias, in the tanh approximation that the fused kernels compute."""
    return _gelu(input if bias is None else input + bias)


def geglu(*, input: Tensor, bias: Tensor | None = None, **_: object) -> Tensor:
    """The gelu of the first half of the last dim gates the second."""
    gate, value = torch.chunk(input if bias is None else input + bias, 2, dim=-1)
    return _gelu(gate) * value


def swiglu(*, input: Tensor, bias: Tensor | None = None, weights: Tensor | None = None, **_: object) -> Tensor:
    """x1 sigmoid(x1) x2: the first half of the last dim gates the second; a bias before, token weights after."""
    gate, value = torch.chunk(input if bias is None else input + bias, 2, dim=-1)
    result = gate * torch.sigmoid(gate) * value
    return result if weights is None else result * weights


def quick_geglu(
    *,
    input: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    linear_offset: Tensor | float = 0.0,
    **_: object,
) -> Tensor:
    """x1 sigmoid(1.702 x1) (x2 + offset), times token weights."""
    gate, value = torch.chunk(input if bias is None else input + bias, 2, dim=-1)
    return gate * torch.sigmoid(1.702 * gate) * (value + linear_offset) * weights


def squared_relu(*, input: Tensor, weights: Tensor, **_: object) -> Tensor:
    """The square of relu, times token weights."""
    return torch.relu(input).square() * weights


def _gelu(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


REFERENCES: Final[dict[str, Callable[..., Tensor]]] = {
    "GeLUFunction": gelu,
    "GeGLUFunction": geglu,
    "BiasGeGLUFunction": geglu,
    "BiasSwiGLUFunction": swiglu,
    "SwiGLUFunction": swiglu,
    "WeightedSwiGLUFunction": swiglu,
    "WeightedQuickGeGLUFunction": quick_geglu,
    "WeightedBiasQuickGeGLUFunction": quick_geglu,
    "WeightedSquaredReLUFunction": squared_relu,
}
