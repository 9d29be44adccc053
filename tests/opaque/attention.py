"""Softmax attention in one Function; with context parallelism keys and values are gathered inside of it.

Source: NVIDIA/TransformerEngine, transformer_engine/pytorch/attention/dot_product_attention: FusedAttnFunc of
backends.py, AttnFuncWithCPAndKVAllGather of context_parallel.py; its Megatron side is TEDotProductAttention
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.enums import AttnMaskType
from torch import Tensor

from tests.opaque import kernels
from tests.opaque.base import OpaqueModule
from tests.opaque.faults import strike
from tests.opaque.gemm import gather_along_first_dim, reduce_scatter_along_first_dim
from tests.opaque.kernels import ARBITRARY, CAUSAL, NO_MASK, Attention

MASKS = {AttnMaskType.causal: CAUSAL, AttnMaskType.no_mask: NO_MASK}


def fused_attn_fwd(q: Tensor, k: Tensor, v: Tensor, how: Attention) -> tuple[Tensor, Tensor]:
    """The output [sq, b, h, d] and the log-sum-exp of the scores [1, b, h, sq]."""
    out = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
    lse = torch.empty((1, q.shape[1], q.shape[2], q.shape[0]), dtype=torch.float32, device=q.device)
    kernels.attention_forward(q, k, v, out, lse, how)
    return out, lse


def fused_attn_bwd(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: Attention
) -> tuple[Tensor, ...]:
    """Gradients of q, k and v."""
    gradients = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    kernels.attention_backward(grad, q, k, v, out, lse, gradients, how)
    return gradients


def as_told(settings: tuple[Any, ...], rng_state: Tensor, mask: Tensor | None) -> Attention:
    """For a kernel: what the Function got in its arguments."""
    scale, dropout_p, mask_type, query_positions, key_positions = settings
    return Attention(scale, dropout_p, mask_type, query_positions, key_positions, rng_state, mask)


class FusedAttnFunc(torch.autograd.Function):
    """Attention of this rank's own sequence."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rng_state: Tensor,
        mask: Tensor | None,
        attn_settings: tuple[Any, ...],
        due: str,
    ) -> Tensor:
        """The state of the random numbers is a tensor that is kept: the backward drops the same weights."""
        out, lse = fused_attn_fwd(q, k, v, as_told(attn_settings, rng_state, mask))
        strike(due, "fwd", out)
        if ctx is not None:
            ctx.save_for_backward(q, k, v, out, lse, rng_state, mask)
            ctx.attn_settings, ctx.due = attn_settings, due
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of q, k and v."""
        q, k, v, out, lse, rng_state, mask = ctx.saved_tensors
        how = as_told(ctx.attn_settings, rng_state, mask)
        dq, dk, dv = fused_attn_bwd(grad_output, q, k, v, out, lse, how)
        strike(ctx.due, "bwd", dk)
        return dq, dk, dv, None, None, None, None


class AttnFuncWithCPAndKVAllGather(torch.autograd.Function):
    """Attention of this rank's queries and everybody's keys."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rng_state: Tensor,
        attn_settings: tuple[Any, ...],
        cp_group: Any,
        due: str,
    ) -> Tensor:
        """Positions say which key is where: what was gathered stays as it came."""
        all_k, all_v = (gather_along_first_dim(x, cp_group)[0] for x in (k, v))
        out, lse = fused_attn_fwd(q, all_k, all_v, as_told(attn_settings, rng_state, None))
        strike(due, "fwd", out)
        if ctx is not None:
            ctx.save_for_backward(q, k, v, out, lse, rng_state)
            ctx.attn_settings, ctx.cp_group, ctx.due = attn_settings, cp_group, due
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Keys and values are gathered again, and their gradients summed."""
        q, k, v, out, lse, rng_state = ctx.saved_tensors
        all_k, all_v = (gather_along_first_dim(x, ctx.cp_group)[0] for x in (k, v))
        how = as_told(ctx.attn_settings, rng_state, None)
        dq, dk, dv = fused_attn_bwd(grad_output, q, all_k, all_v, out, lse, how)
        strike(ctx.due, "bwd", dk)
        dk, dv = (reduce_scatter_along_first_dim(x, ctx.cp_group)[0] for x in (dk, dv))
        return dq, dk, dv, None, None, None, None


class DotProductAttention(OpaqueModule):
    """Core attention as Megatron calls it."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        pg_collection: Any = None,
        **_: Any,
    ) -> None:
        super().__init__(config)
        self.scale = softmax_scale or config.kv_channels**-0.5
        self.dropout_p = config.attention_dropout if attention_dropout is None else attention_dropout
        self.attn_mask_type = attn_mask_type
        self.cp_group = getattr(pg_collection, "cp", None) or parallel_state.get_context_parallel_group()
        self._positions: dict[int, tuple[Tensor, Tensor]] = {}
        self._no_random_numbers = torch.zeros(2, dtype=torch.int64, device=torch.cuda.current_device())

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        **_: Any,
    ) -> Tensor:
        """[s, b, h, d] each, to [s, b, h * d]."""
        mask_type = MASKS[attn_mask_type or self.attn_mask_type] if attention_mask is None else ARBITRARY
        mask = None if attention_mask is None else attention_mask[:, 0].expand(query.shape[1], -1, -1).contiguous()
        settings = (self.scale, self.dropout_p if self.training else 0.0, mask_type, *self.positions(query.shape[0]))
        rng_state, is_grad_enabled, due = self.rng_state(), torch.is_grad_enabled(), self.due()
        args: tuple[Any, ...]
        if self.cp_group.size() > 1:
            assert mask is None, "context parallelism masks by position"
            function, args = AttnFuncWithCPAndKVAllGather, (query, key, value, rng_state, settings, self.cp_group, due)
        else:
            function, args = FusedAttnFunc, (query, key, value, rng_state, mask, settings, due)
        out: Tensor = function.apply(*args) if is_grad_enabled else function.forward(None, *args)
        return out.view(*out.shape[:2], -1)

    def rng_state(self) -> Tensor:
        """Seed and offset of this call's dropout."""
        if not (self.dropout_p and self.training):
            return self._no_random_numbers
        with get_cuda_rng_tracker().fork():
            return torch.randint(0, 2**62, (2,), dtype=torch.int64, device=torch.cuda.current_device())

    def positions(self, length: int) -> tuple[Tensor, Tensor]:
        """Where this rank's queries, and the keys as they are gathered, are in the sequence.

        Rank r of n has chunk r and chunk 2 n - 1 - r.
        """
        if length not in self._positions:
            parts = self.cp_group.size()
            if parts == 1:
                every = [list(range(length))]
            else:
                half = length // 2
                chunks = [list(range(chunk * half, (chunk + 1) * half)) for chunk in range(2 * parts)]
                every = [chunks[rank] + chunks[2 * parts - 1 - rank] for rank in range(parts)]
            device = torch.cuda.current_device()
            of_keys = torch.tensor([*itertools.chain(*every)], dtype=torch.int64, device=device)
            of_queries = torch.tensor(every[self.cp_group.rank()], dtype=torch.int64, device=device)
            self._positions[length] = of_queries, of_keys
        return self._positions[length]
