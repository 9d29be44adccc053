"""The gradient of a single parameter where no buffer holds it: FSDP, torch's FSDP2, plain modules."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Parameter

UNKNOWN_START = -1
"""Start of a local part whose place in the whole parameter the sharding does not tell."""


class LocalGradient(NamedTuple):
    """What this rank holds of one gradient.

    Attributes:
        data: [numel], flat, on the training device.
        start: its first element inside the flattened parameter, or UNKNOWN_START.
    """

    data: Tensor
    start: int


def local_gradient(param: Parameter) -> LocalGradient | None:
    """Return the part of the parameter's gradient that lives on this rank; None while there is none.

    Source: megatron/core/distributed/finalize_model_grads.py, `_get_main_grad_attr`
    """
    main_grad: Any = getattr(param, "main_grad", None)
    grad: Any = param.grad if main_grad is None else main_grad
    if grad is None:
        return None
    if not hasattr(grad, "to_local"):
        return LocalGradient(grad.detach().reshape(-1), 0)
    return LocalGradient(grad.to_local().detach().reshape(-1), _start_of_local(grad))


def _start_of_local(grad: Any) -> int:
    """Return where a DTensor's local part begins, for the split torch's FSDP2 makes: dim 0 over one mesh dimension."""
    if grad.device_mesh.ndim != 1 or not grad.placements[0].is_shard(dim=0):
        return UNKNOWN_START
    rows_per_rank = -(-grad.shape[0] // grad.device_mesh.size())
    first_row: int = min(grad.shape[0], grad.device_mesh.get_local_rank() * rows_per_rank)
    row_numel: int = math.prod(grad.shape[1:])
    return first_row * row_numel
