"""Tokens to their experts and back: each way one Function.

Source: NVIDIA/TransformerEngine v2.8, transformer_engine/pytorch/permutation.py; Megatron calls them as
megatron/core/transformer/moe/moe_utils.py, fused_permute and its like
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.opaque import kernels
from tests.opaque.faults import due_in_running_layer, strike


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device)


class _moe_permute_mask_map(torch.autograd.Function):
    """Copies each token to every expert that it is meant for, sorted by expert."""

    @staticmethod
    def forward(
        ctx: Any, inp: Tensor, routing_map: Tensor, num_out_tokens: int, probs: Tensor | None, due: str
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Tokens [n, h] and their probabilities [n, experts] to those of the pairs that are chosen."""
        row_id_map = torch.empty((2, num_out_tokens), dtype=torch.int32, device=inp.device)
        kernels.sort_by_expert(routing_map.contiguous(), row_id_map[0], row_id_map[1])
        output = _empty(inp, num_out_tokens, inp.shape[1])
        kernels.gather_rows(inp, row_id_map[0], None, output)
        strike(due, "fwd", output)
        permuted_probs = None
        if probs is not None:
            permuted_probs = _empty(probs, num_out_tokens)
            kernels.gather_rows(probs.reshape(-1, 1), row_id_map[1], None, permuted_probs.view(-1, 1))
        ctx.save_for_backward(row_id_map)
        ctx.num_tokens, ctx.num_experts, ctx.due = inp.shape[0], routing_map.shape[1], due
        ctx.mark_non_differentiable(row_id_map)
        return output, row_id_map, permuted_probs

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any, probs_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        """Each token gets the sum of what its copies get."""
        (row_id_map,) = ctx.saved_tensors
        act_grad = _empty(grad, ctx.num_tokens, grad.shape[1])
        kernels.scatter_rows(grad, row_id_map[0], None, act_grad)
        strike(ctx.due, "bwd", act_grad)
        of_probs = None
        if ctx.needs_input_grad[3] and probs_grad is not None:
            of_probs = _empty(probs_grad, ctx.num_tokens, ctx.num_experts)
            kernels.scatter_rows(probs_grad.reshape(-1, 1), row_id_map[1], None, of_probs.view(-1, 1))
        return act_grad, None, None, of_probs, None


class _moe_unpermute_mask_map(torch.autograd.Function):
    """Adds up the copies of each token."""

    @staticmethod
    def forward(
        ctx: Any, inp: Tensor, row_id_map: Tensor, merging_probs: None, restore_shape: torch.Size, due: str
    ) -> Tensor:
        """The copies [m, h] to tokens [n, h]."""
        output = _empty(inp, *restore_shape)
        kernels.scatter_rows(inp, row_id_map[0], None, output)
        strike(due, "fwd", output)
        ctx.save_for_backward(row_id_map)
        ctx.num_permuted_tokens, ctx.due = inp.shape[0], due
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Each copy gets what its token gets."""
        (row_id_map,) = ctx.saved_tensors
        act_grad = _empty(grad, ctx.num_permuted_tokens, grad.shape[1])
        kernels.gather_rows(grad, row_id_map[0], None, act_grad)
        strike(ctx.due, "bwd", act_grad)
        return act_grad, None, None, None, None


class _moe_chunk_sort(torch.autograd.Function):
    """Puts chunks of rows into another order."""

    @staticmethod
    def forward(
        ctx: Any, inp: Tensor, split_sizes: Tensor, sorted_idxs: Tensor, probs: Tensor | None, due: str
    ) -> tuple[Tensor, Tensor | None]:
        """Rows [m, h] and their probabilities [m]."""
        rows = torch.arange(inp.shape[0], dtype=torch.int32, device=inp.device).split(split_sizes.tolist())
        row_id_map = torch.cat([rows[index] for index in sorted_idxs.tolist()])
        output = _empty(inp, *inp.shape)
        kernels.gather_rows(inp, row_id_map, None, output)
        strike(due, "fwd", output)
        permuted_probs = None
        if probs is not None:
            permuted_probs = _empty(probs, *probs.shape)
            kernels.gather_rows(probs.reshape(-1, 1), row_id_map, None, permuted_probs.view(-1, 1))
        ctx.save_for_backward(row_id_map)
        ctx.due = due
        return output, permuted_probs

    @staticmethod
    def backward(ctx: Any, grad: Tensor, probs_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        """The order from before."""
        (row_id_map,) = ctx.saved_tensors
        act_grad = _empty(grad, *grad.shape)
        kernels.scatter_rows(grad, row_id_map, None, act_grad)
        strike(ctx.due, "bwd", act_grad)
        of_probs = None
        if ctx.needs_input_grad[3] and probs_grad is not None:
            of_probs = _empty(probs_grad, *probs_grad.shape)
            kernels.scatter_rows(probs_grad.reshape(-1, 1), row_id_map, None, of_probs.view(-1, 1))
        return act_grad, None, None, of_probs, None


# As Megatron calls them ---------------------------------------------------------------------------------------------


def moe_permute_with_probs(
    inp: Tensor, probs: Tensor, routing_map: Tensor, num_out_tokens: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, probabilities and the map back."""
    output, row_id_map, permuted_probs = _moe_permute_mask_map.apply(
        inp, routing_map, int(num_out_tokens), probs, due_in_running_layer("permute")
    )
    return output, permuted_probs, row_id_map


def moe_permute(inp: Tensor, routing_map: Tensor, num_out_tokens: Any = None) -> tuple[Tensor, Tensor]:
    """Tokens and the map back."""
    output, row_id_map, _ = _moe_permute_mask_map.apply(
        inp, routing_map, int(num_out_tokens), None, due_in_running_layer("permute")
    )
    return output, row_id_map


def moe_unpermute(
    inp: Tensor, row_id_map: Tensor, merging_probs: Tensor | None = None, restore_shape: Any = None, **_: Any
) -> Tensor:
    """Tokens from their copies, which carry their probabilities already."""
    assert merging_probs is None
    due = due_in_running_layer("unpermute")
    tokens: Tensor = _moe_unpermute_mask_map.apply(inp, row_id_map, merging_probs, restore_shape, due)
    return tokens


def moe_sort_chunks_by_index(inp: Tensor, split_sizes: Tensor, sorted_idxs: Tensor) -> Tensor:
    """Rows in another order."""
    output: Tensor = _moe_chunk_sort.apply(inp, split_sizes, sorted_idxs, None, due_in_running_layer("sort_chunks"))[0]
    return output


def moe_sort_chunks_by_index_with_probs(
    inp: Tensor, probs: Tensor, split_sizes: Tensor, sorted_idxs: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows and probabilities in another order."""
    output, permuted_probs = _moe_chunk_sort.apply(
        inp, split_sizes, sorted_idxs, probs, due_in_running_layer("sort_chunks")
    )
    return output, permuted_probs
