"""Root mean square normalisation over the last dims, by its definition."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def reference(
    *,
    input: Tensor | None = None,
    weight: Tensor | None = None,
    normalized_shape: Sequence[int] | None = None,
    eps: float = 1e-5,
    x: Tensor | None = None,
    **_: object,
) -> Tensor:
    """Normalise; Apex and Megatron's batch-invariant kernel name the input differently."""
    values = x if input is None else input
    assert values is not None
    num_dims = len(normalized_shape) if normalized_shape is not None else 1
    square = values.square().mean(tuple(range(-num_dims, 0)), keepdim=True)
    result = values * torch.rsqrt(square + eps)
    return result if weight is None else result * weight
