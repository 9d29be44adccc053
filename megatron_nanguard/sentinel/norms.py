"""Norms of many tensors at once, in fp32 whatever their own type."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TAKES_DTYPE = any(argument.name == "dtype" for argument in torch.ops.aten._foreach_norm.Scalar._schema.arguments)
"""Whether this torch (2.4 and later) sums up in the type it is asked for; before, fp16 sums overflow in fp16."""


@torch.no_grad()
def norms_of(tensors: Sequence[Tensor]) -> Tensor:
    """fp32 [len(tensors)] on their device; 0 for an empty one.

    Sync: none; a constant number of kernels, in older torch one per tensor.
    """
    if TAKES_DTYPE:
        return torch.stack(torch._foreach_norm(list(tensors), 2, torch.float32))
    return torch.stack([torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors])
