"""How many attention heads a rank holds, to recognise the dim of a tensor that counts them."""

from __future__ import annotations

from collections.abc import Iterable

from torch.nn import Module

_COUNTS = ("num_attention_heads_per_partition", "num_query_groups_per_partition")


def attention_heads(chunks: Iterable[Module]) -> frozenset[int]:
    """Return every number of heads, of queries or of keys, that a module of the chunks has on this rank.

    Source: megatron/core/transformer/attention.py, Attention.num_attention_heads_per_partition
    """
    modules = (module for chunk in chunks for module in chunk.modules())
    counts = (vars(module).get(name) for module in modules for name in _COUNTS)
    return frozenset(count for count in counts if isinstance(count, int) and count > 1)
