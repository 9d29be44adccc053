"""SwiGLU: the first half of the last dim, through silu, gates the second; a bias before, token weights after."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(*, input: Tensor, bias: Tensor | None = None, weights: Tensor | None = None, **_: object) -> Tensor:
    """x1 sigmoid(x1) x2."""
    gate, value = torch.chunk(input if bias is None else input + bias, 2, dim=-1)
    result = gate * torch.sigmoid(gate) * value
    return result if weights is None else result * weights
