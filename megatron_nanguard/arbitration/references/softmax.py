"""Scaled softmax over the last dim, with or without a mask."""

from __future__ import annotations

from typing import Any

from torch import Tensor

MASKED = -10000.0
"""What Megatron's mask functions and fused kernels put in place of a masked score."""


def reference(*, inputs: Tensor, scale: float = 1.0, mask: Tensor | None = None, **_: Any) -> Tensor:
    """Softmax; the mask is true where a score is dropped, as in Megatron."""
    scores = inputs * scale
    if mask is not None:
        scores = scores.masked_fill(mask.bool(), MASKED)
    weights = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return weights / weights.sum(-1, keepdim=True)
