"""A Triton kernel in an autograd.Function; import it only where Triton runs in its interpreter, on the CPU."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 16


@triton.jit
def scale_kernel(x_ptr, w_ptr, out_ptr, bad_at, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Multiply by w[0]; write a NaN at one place if that is not negative."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    y = tl.load(x_ptr + offsets, mask=inside) * tl.load(w_ptr)
    tl.store(out_ptr + offsets, tl.where(offsets == bad_at, float("nan"), y), mask=inside)


def _scaled(x: Tensor, w: Tensor, is_bad: bool) -> Tensor:
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, w, out, 3 if is_bad else -1, x.numel(), BLOCK=BLOCK)
    return out


class TritonScale(torch.autograd.Function):
    """x * w; `fault` is the part that writes a NaN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, fault: str) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.fault = fault
        return _scaled(x, w, fault == "forward")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return _scaled(grad.contiguous(), w, ctx.fault == "backward"), (grad * x).sum().reshape(1), None
