"""Counters of bucket groups and marks of parameters come back after the buffers were emptied."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatron_nanguard.megatron_api import bucket_state
from megatron_nanguard.megatron_api.bucket_state import is_dispatched
from megatron_nanguard.megatron_api.buffers import gradient_tensors
from tests.unit.megatron_api.chunks import Chunk
from tests.unit.one_rank import trainer


def test_emptying_moves_the_groups_on_and_they_come_back(megatron: Any) -> None:
    made = trainer(ddp={"overlap_grad_reduce": True})
    made.forward_backward()
    (group,) = made.ddp.bucket_groups
    before = {name: getattr(group, name) for name in ("is_first_batch", "is_last_microbatch", "grad_reduce_finished")}
    counts = dict(group.per_param_grad_ready_counts)
    put_back = bucket_state.keep([made.ddp])
    for _ in range(2):
        bucket_state.zero_gradients([made.ddp])
        assert [float(tensor.abs().sum()) for tensor in gradient_tensors([made.ddp])] == [0.0]
        assert {name: getattr(group, name) for name in before} != before
        put_back()
        assert {name: getattr(group, name) for name in before} == before
        assert group.per_param_grad_ready_counts == counts


def test_marks_and_gradients_of_parameters_come_back() -> None:
    chunk = Chunk()
    chunk.bucket_groups, chunk.expert_parallel_bucket_groups = [], []
    chunk.a.grad_added_to_main_grad = True
    chunk.b.grad = gradient = torch.ones(3)
    chunk.force_all_reduce = True
    put_back = bucket_state.keep([chunk])
    chunk.a.grad_added_to_main_grad = False
    chunk.b.grad, chunk.c.grad = None, torch.ones(4)
    chunk.force_all_reduce = False
    put_back()
    assert chunk.a.grad_added_to_main_grad is True
    assert chunk.b.grad is gradient
    assert chunk.c.grad is None
    assert chunk.force_all_reduce is True
    assert not hasattr(chunk.b, "grad_added_to_main_grad")


def test_sets_of_ready_parameters_are_kept_by_content() -> None:
    chunk = Chunk()
    group = SimpleNamespace(params_with_grad={chunk.a}, communication_handle=None, other=1)
    chunk.bucket_groups, chunk.expert_parallel_bucket_groups = [group], []
    put_back = bucket_state.keep([chunk])
    for _ in range(2):
        group.params_with_grad.add(chunk.b)
        group.communication_handle, group.other = object(), 2
        put_back()
        assert (group.params_with_grad, group.communication_handle, group.other) == ({chunk.a}, None, 2)


def test_weights_are_gathered_once_and_the_functions_that_gather_come_back() -> None:
    chunk = Chunk()
    under_way, plain = SimpleNamespace(param_gather_dispatched=False, param_gather_handle=object()), SimpleNamespace()
    chunk.bucket_groups, chunk.expert_parallel_bucket_groups = [under_way], [plain]
    chunk.config.param_sync_func = gather = [print]
    put_back = bucket_state.keep([chunk])
    with bucket_state.without_weight_gather([chunk]):
        assert (under_way.param_gather_dispatched, under_way.param_gather_handle) == (True, None)
        assert chunk.config.param_sync_func is None
    assert chunk.config.param_sync_func is gather
    assert vars(plain) == {}
    put_back()
    assert (under_way.param_gather_dispatched, under_way.param_gather_handle is None) == (False, False)


def test_a_reduction_is_on_its_way_from_its_start_to_its_end(megatron: Any) -> None:
    made = trainer(ddp={"overlap_grad_reduce": True})
    made.forward_backward()
    (group,) = made.ddp.bucket_groups
    assert not is_dispatched(group)
    made.ddp.zero_grad_buffer()
    group.start_grad_sync()
    assert is_dispatched(group)
    group.finish_grad_sync()
    assert not is_dispatched(group)


@pytest.mark.parametrize("handle", [None, object()])
def test_before_0_10_the_handle_has_another_name(handle: object) -> None:
    assert is_dispatched(SimpleNamespace(communication_handle=handle)) is (handle is not None)
