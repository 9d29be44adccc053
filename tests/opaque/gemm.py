"""One entrance for all products, as `general_gemm` of Transformer Engine, and the communication around them."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.opaque import kernels
from tests.opaque.float8 import Float8Storage

Operand = Tensor | Float8Storage

_workspaces: dict[tuple[str, tuple[int, ...]], Tensor] = {}
_dummies: dict[tuple[tuple[int, ...], torch.dtype], Tensor] = {}


def general_gemm(
    a: Operand,
    b: Operand,
    out_dtype: torch.dtype,
    *,
    layout: str = "TN",
    out: Tensor | None = None,
    bias: Tensor | None = None,
    accumulate: bool = False,
) -> Tensor:
    """A product of 2D operands in the order that cuBLAS has them.

    Args:
        a: TN: weight [n, k]; NN: weight [n, k]; NT: input [m, k].
        b: TN: input [m, k]; NN: gradient [m, n]; NT: gradient [m, n].
        out_dtype: of the output, where none is given.
        layout: TN forward, NN gradient of the input, NT gradient of the weight.
        out: to be written into.
        bias: [n], added in a forward.
        accumulate: add to `out`.
    """
    left, right = _operand(b, "b"), _operand(a, "a")
    rows = left.shape[1] if layout == "NT" else left.shape[0]
    columns = right.shape[0] if layout == "TN" else right.shape[1]
    if out is None:
        out = torch.empty((rows, columns), dtype=out_dtype, device=left.device)
    kernels.gemm(left, right, out, bias=bias, left_t=layout == "NT", right_t=layout == "TN", accumulate=accumulate)
    return out


def _operand(x: Operand, role: str) -> Tensor:
    """Values of an operand; those of float8 are unpacked into a workspace that every product uses again."""
    if isinstance(x, Tensor):
        return x
    key = (role, tuple(x.data.shape))
    if key not in _workspaces:
        _workspaces[key] = torch.empty(x.data.shape, dtype=torch.float32, device=x.data.device)
    kernels.dequantize(x.as_float8(), x.scale_inv, _workspaces[key])
    return _workspaces[key]


def get_dummy_wgrad(like: Tensor) -> Tensor:
    """What autograd is given for a weight whose gradient is in `main_grad` already: memory without values.

    Weights of one shape share it. Whatever is there is thrown away by the host's hook, so it is NaN here.
    """
    key = (tuple(like.shape), like.dtype)
    if key not in _dummies:
        _dummies[key] = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        kernels.spoil(_dummies[key], 0, like.numel(), math.nan)
    return _dummies[key].detach()


# Communication ------------------------------------------------------------------------------------------------------


def allreduce(x: Tensor, group: Any, *, is_async: bool = False) -> tuple[Tensor, Any]:
    """Sum over the group, in place.

    Collective: the group.
    """
    if group is None or group.size() == 1:
        return x, None
    return x, dist.all_reduce(x, group=group, async_op=is_async)


def gather_along_first_dim(x: Tensor, group: Any, *, is_async: bool = False) -> tuple[Tensor, Any]:
    """The parts of all ranks.

    Collective: the group.
    """
    if group is None or group.size() == 1:
        return x, None
    out = torch.empty((x.shape[0] * group.size(), *x.shape[1:]), dtype=x.dtype, device=x.device)
    return out, dist.all_gather_into_tensor(out, x.contiguous(), group=group, async_op=is_async)


def reduce_scatter_along_first_dim(x: Tensor, group: Any, *, is_async: bool = False) -> tuple[Tensor, Any]:
    """This rank's part of the sum.

    Collective: the group.
    """
    if group is None or group.size() == 1:
        return x, None
    out = torch.empty((x.shape[0] // group.size(), *x.shape[1:]), dtype=x.dtype, device=x.device)
    return out, dist.reduce_scatter_tensor(out, x.contiguous(), group=group, async_op=is_async)


def wait(work: Any) -> None:
    """Wait for what was started asynchronously; nothing was where there is no work."""
    if work is not None:
        work.wait()
