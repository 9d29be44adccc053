from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from torch.nn import Linear

from megatron_nanguard.megatron_api.parallel import global_rank, position, world_size
from tests.unit.megatron_api.chunks import Group
from tests.unit.megatron_api.fake_world import fake_world

PARALLEL_STATE = "megatron.core.parallel_state"


def parallel_state(**groups: Group) -> SimpleNamespace:
    """The module as far as some release has it: getters of groups."""
    getters: dict[str, Callable[[], Group]] = {name: lambda group=group: group for name, group in groups.items()}
    return SimpleNamespace(model_parallel_is_initialized=lambda: True, **getters)


@pytest.fixture(autouse=True)
def no_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, PARALLEL_STATE, raising=False)


def test_the_collection_of_the_chunk_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PARALLEL_STATE, parallel_state(get_tensor_model_parallel_group=Group(3, 4)))
    chunk = Linear(1, 1)
    assert position(chunk, "tp") == (3, 4)
    chunk.tp_group = Group(2, 4)
    assert position(chunk, "tp") == (2, 4)
    chunk.pg_collection = SimpleNamespace(pp=Group(0, 2))
    assert position(chunk, "tp") == (2, 4)
    chunk.pg_collection.tp = Group(1, 4)
    assert position(chunk, "tp") == (1, 4)


def test_releases_without_groups_for_experts_have_others(monkeypatch: pytest.MonkeyPatch) -> None:
    old = parallel_state(get_tensor_model_parallel_group=Group(1, 2), get_data_modulo_expert_parallel_group=Group(0, 3))
    monkeypatch.setitem(sys.modules, PARALLEL_STATE, old)
    assert position(Linear(1, 1), "expert_tp") == (1, 2)
    assert position(Linear(1, 1), "expert_dp") == (0, 3)


def test_a_list_of_pipeline_groups_counts_by_its_first(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = Linear(1, 1)
    chunk.pp_group = [Group(1, 3), Group(0, 2)]
    assert position(chunk, "pp") == (1, 3)


def test_without_megatron_groups_the_ranks_are_replicas() -> None:
    with fake_world(rank=2, size=4):
        assert position(Linear(1, 1), "dp") == (2, 4)
        assert position(Linear(1, 1), "tp") == (0, 1)
        assert (global_rank(), world_size()) == (2, 4)


def test_without_distributed_there_is_one_rank() -> None:
    assert position(Linear(1, 1), "dp") == (0, 1)
    assert (global_rank(), world_size()) == (0, 1)
