from __future__ import annotations

from torch import nn
from torch.nn import Linear, Module

from megatron_nanguard.megatron_api.model_chunks import (
    attention_heads,
    chunk_attribute,
    layer_number,
    local_expert_indices,
    unwrap,
    vp_stage,
    wrapper_chain,
)


class Wrapper(Module):
    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module


def test_wrappers_come_off_from_the_outside() -> None:
    model = Linear(1, 1)
    half = Wrapper(model)
    chunk = Wrapper(half)
    assert list(wrapper_chain(chunk)) == [chunk, half, model]
    assert unwrap(chunk) is model
    assert unwrap(model) is model


def test_the_outermost_attribute_that_is_set_counts() -> None:
    chunk = Wrapper(Wrapper(Linear(1, 1)))
    chunk.vp_stage = None
    chunk.module.module.vp_stage = 1
    assert vp_stage(chunk) == 1
    chunk.vp_stage = 0
    assert vp_stage(chunk) == 0
    assert chunk_attribute(chunk, "pg_collection") is None


def test_only_an_integer_is_a_layer_number() -> None:
    layer = Linear(1, 1)
    assert layer_number(layer) is None
    layer.layer_number = 3
    assert layer_number(layer) == 3
    # A method of this name, as on a class that sets it later, is none.
    layer.layer_number = layer.forward
    assert layer_number(layer) is None


def test_only_a_moe_layer_has_experts() -> None:
    layer = Linear(1, 1)
    assert local_expert_indices(layer) is None
    layer.local_expert_indices = [4, 5]
    assert local_expert_indices(layer) == [4, 5]


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
