"""Context parallelism for Megatron's local core attention, in plain PyTorch.

Megatron's DotProductAttention refuses CP > 1: only Transformer Engine has it. Here every rank gathers keys and
values of the whole sequence over its CP group (backward: reduce-scatter), puts the zig-zag chunks back in order and
masks by position; Megatron's attention computes the rest. Causal self attention only. CP 1 runs as before.
"""

from __future__ import annotations

import copy
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes, Function

_said: list[str] = []


def teach_context_parallel(changes: ChangedAttributes, dot_product_attention: ModuleType) -> None:
    """Let DotProductAttention be built and called with CP > 1.

    The two methods are wrapped, not the layer spec: specs copy the class under several names.

    Source: megatron/core/transformer/dot_product_attention.py, DotProductAttention
    """
    attention = dot_product_attention.DotProductAttention
    changes.wrap(attention, "__init__", _building)
    changes.wrap(attention, "forward", _attending)


def zigzag_positions(seq_length: int, cp_size: int) -> Tensor:
    """Positions that each CP rank holds: chunk r and chunk 2 * cp_size - 1 - r.

    Args:
        seq_length: Tokens of the whole sequence; a multiple of 2 * cp_size.
        cp_size: Number of context-parallel ranks.
    Returns:
        int64 [cp_size, seq_length / cp_size].
    Source: megatron/core/utils.py, get_batch_on_this_cp_rank
    """
    chunks = torch.arange(seq_length).view(2 * cp_size, -1)
    return torch.stack([torch.cat([chunks[r], chunks[2 * cp_size - 1 - r]]) for r in range(cp_size)])


def gather_sequence(key: Tensor, value: Tensor, mask: Tensor | None, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Gather keys and values of the whole sequence in order, and make the mask of this rank's queries.

    Args:
        key: [s / cp, b, heads, d], this rank's chunks.
        value: Same shape.
        mask: [b, 1, s / cp, s], True where masked, as the data loader made it; None to mask causally.
        group: Context-parallel group.
    Returns:
        key [s, b, heads, d], value (same), mask [b or 1, 1, s / cp, s].
    Collective: the context-parallel group.
    """
    positions = zigzag_positions(key.size(0) * group.size(), group.size())
    order = torch.argsort(positions.flatten())
    if group.size() > 1:
        key, value = _all_parts(key, group)[order], _all_parts(value, group)[order]
    if mask is None:
        mask = (torch.arange(order.numel())[None, :] > positions[group.rank()][:, None])[None, None]
    return key, value, mask


def _all_parts(part: Tensor, group: Any) -> Tensor:
    """Parts of all ranks, concatenated; the backward pass sums their gradients over the ranks.

    Collective: the context-parallel group, forward and backward.
    """
    from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

    whole: Tensor = gather_from_sequence_parallel_region(part.contiguous(), group=group)
    return whole


def _building(original: Function) -> Function:
    from megatron.core import parallel_state

    def init(
        self: Any, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str, *args: Any, **kwargs: Any
    ) -> None:
        if config.context_parallel_size == 1:
            original(self, config, layer_number, attn_mask_type, attention_type, *args, **kwargs)
            return
        if attn_mask_type.name != "causal" or attention_type != "self":
            raise NotImplementedError(
                f"layer {layer_number}: {attn_mask_type.name} {attention_type} attention with context parallel size "
                f"{config.context_parallel_size}; the CPU stand-in has causal self attention only"
            )
        plain = copy.copy(config)
        plain.context_parallel_size = 1  # the original refuses other sizes
        original(self, plain, layer_number, attn_mask_type, attention_type, *args, **kwargs)
        self.config = config
        group = getattr(kwargs.get("pg_collection"), "cp", None)  # of the layer's own process groups
        self.gathered_over = group or parallel_state.get_context_parallel_group()
        _say_once(config.context_parallel_size)

    return init


def _attending(original: Function) -> Function:
    def forward(
        self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *args: Any, **kwargs: Any
    ) -> Any:
        group = getattr(self, "gathered_over", None)
        if group is not None:
            key, value, attention_mask = gather_sequence(key, value, attention_mask, group)
        return original(self, query, key, value, attention_mask, *args, **kwargs)

    return forward


def _say_once(size: int) -> None:
    message = (
        f"[cpu-run] context parallel size {size}: Megatron's local attention has none, a plain PyTorch one takes its "
        "place (keys and values gathered over the context-parallel group, causal self attention only)"
    )
    if torch.distributed.get_rank() == 0 and message not in _said:
        _said.append(message)
        print(message, file=sys.stderr)
