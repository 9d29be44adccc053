"""Head counts as modules state them."""

from __future__ import annotations

from torch import nn

from megatron_nanguard.megatron_api.attention_heads import attention_heads


def test_queries_and_keys_of_every_chunk_are_counted() -> None:
    chunks = [nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), nn.Linear(1, 1)]
    chunks[0][1].num_attention_heads_per_partition = 8
    chunks[0][1].num_query_groups_per_partition = 2
    chunks[1].num_attention_heads_per_partition = 4
    assert attention_heads(chunks) == {8, 2, 4}


def test_a_single_head_says_nothing_of_a_dim() -> None:
    module = nn.Linear(1, 1)
    module.num_attention_heads_per_partition = 1
    assert attention_heads([module, nn.Linear(1, 1)]) == frozenset()
