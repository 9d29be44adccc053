"""Layer normalisation over the last dims, by its definition."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def reference(
    *,
    input: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    normalized_shape: Sequence[int] | None = None,
    eps: float = 1e-5,
    x: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float | None = None,
    **_: object,
) -> Tensor:
    """Normalise; Apex calls the arguments by one set of names, its fast layer norm by the other."""
    values = x if input is None else input
    scale, shift = gamma if weight is None else weight, beta if bias is None else bias
    assert values is not None
    num_dims = len(normalized_shape) if normalized_shape is not None else 1
    dims = tuple(range(-num_dims, 0))
    centred = values - values.mean(dims, keepdim=True)
    variance = centred.square().mean(dims, keepdim=True)
    result = centred * torch.rsqrt(variance + (eps if epsilon is None else epsilon))
    result = result if scale is None else result * scale
    return result if shift is None else result + shift
