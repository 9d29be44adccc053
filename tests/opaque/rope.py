"""Rotary embedding in one Function.

Source: NVIDIA/TransformerEngine, transformer_engine/pytorch/attention/rope.py, FusedRoPEFunc; Megatron calls it as
megatron/core/models/common/embeddings/rope_utils.py, fused_apply_rotary_pos_emb
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.opaque import kernels
from tests.opaque.faults import due_in_running_layer, strike


class FusedRoPEFunc(torch.autograd.Function):
    """Turns pairs of values by the angle of their position; what is past the angles passes."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, freqs: Tensor, tensor_format: str, interleaved: bool, due: str) -> Tensor:
        """t [s, b, h, d] of any strides, freqs [s, 1, 1, r]."""
        assert (tensor_format, interleaved) == ("sbhd", False)
        output = torch.empty(t.shape, dtype=t.dtype, device=t.device)
        kernels.rope(t, freqs, output)
        strike(due, "fwd", output)
        if ctx is not None:
            ctx.save_for_backward(freqs)
            ctx.due = due
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Turn back."""
        (freqs,) = ctx.saved_tensors
        grad_input = torch.empty(grad_output.shape, dtype=grad_output.dtype, device=grad_output.device)
        kernels.rope(grad_output, freqs, grad_input, back=True)
        strike(ctx.due, "bwd", grad_input)
        return grad_input, None, None, None, None


def fused_apply_rotary_pos_emb(t: Tensor, freqs: Tensor, interleaved: bool = False, **_: Any) -> Tensor:
    """For Megatron; called for queries, and then for keys."""
    turned: Tensor = FusedRoPEFunc.apply(t, freqs.float(), "sbhd", interleaved, due_in_running_layer("rope"))
    return turned
