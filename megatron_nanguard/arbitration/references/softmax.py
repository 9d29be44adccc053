"""Scaled softmax over the last dim, with or without a mask."""

from __future__ import annotations

from torch import Tensor


def reference(*, inputs: Tensor, scale: float = 1.0, mask: Tensor | None = None, **_: object) -> Tensor:
    """Softmax; the mask is true where a score is dropped, as in Megatron."""
    scores = inputs * scale
    if mask is not None:
        # Megatron's mask functions and fused kernels put this value in place of a masked score.
        scores = scores.masked_fill(mask.bool(), -10000.0)
    weights = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return weights / weights.sum(-1, keepdim=True)
