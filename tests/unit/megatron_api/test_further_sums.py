from __future__ import annotations

import pytest
from torch.nn import Linear

from megatron_nanguard.megatron_api.further_sums import summed_further
from tests.unit.megatron_api.chunks import Chunk, Group


def names(chunk: Chunk) -> set[str]:
    ids = summed_further(chunk)
    return {name for name, param in chunk.named_parameters() if id(param) in ids}


@pytest.mark.parametrize("mark", ["sequence_parallel", "average_gradients_across_tp_domain"])
def test_marks_that_count_where_there_are_tensor_parallel_ranks(mark: str) -> None:
    chunk = Chunk()
    setattr(chunk.a, mark, True)
    assert names(chunk) == set()
    chunk.tp_group = Group(0, 2)
    assert names(chunk) == {"a"}


@pytest.mark.parametrize("mark", ["shared_embedding", "pipeline_parallel", "flextron_router_pp_sync"])
def test_marks_that_count_where_there_are_stages(mark: str) -> None:
    chunk = Chunk()
    setattr(chunk.c, mark, True)
    assert names(chunk) == set()
    chunk.pp_group = Group(1, 2)
    assert names(chunk) == {"c"}


def test_the_norms_of_query_and_key_count_when_the_model_has_them() -> None:
    chunk = Chunk()
    chunk.q_layernorm = Linear(1, 1, bias=False)
    chunk.tp_group = Group(0, 2)
    assert names(chunk) == set()
    chunk.config.qk_layernorm = True
    assert names(chunk) == {"q_layernorm.weight"}


def test_weight_rematerialisation_adds_up_all_that_is_not_cut_by_it() -> None:
    chunk = Chunk()
    chunk.config.gtp_weight_remat_size = 2
    chunk.a.is_gtp_weight_remat = True
    assert names(chunk) == {"b", "c"}
