"""Gelu after a bias, in the tanh approximation that the fused kernels compute."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def reference(*, input: Tensor, bias: Tensor | None = None, **_: object) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    x = input if bias is None else input + bias
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
