"""Scaled softmax over the last dim, in which a row sees no later column."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(*, inputs: Tensor, scale: float = 1.0, **_: object) -> Tensor:
    """Softmax of the lower triangle."""
    rows, columns = inputs.shape[-2:]
    later = torch.ones(rows, columns, dtype=torch.bool, device=inputs.device).triu(1)
    scores = (inputs * scale).masked_fill(later, float("-inf"))
    weights = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return weights / weights.sum(-1, keepdim=True)
