"""Norms of what the optimizer is about to consume."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from megatron_nanguard.sentinel import AfterReduction
from tests.unit.one_rank import trainer


def test_before_a_look_there_are_no_norms(megatron: Any) -> None:
    assert AfterReduction([trainer().ddp]).norms is None


@pytest.mark.parametrize("use_distributed_optimizer", [False, True])
def test_the_buffer_is_one_piece_with_the_norm_of_all_gradients(megatron: Any, use_distributed_optimizer: bool) -> None:
    options = {"use_distributed_optimizer": use_distributed_optimizer}
    made = trainer(ddp=options, **options, bf16=True, optimizer="adam")
    made.forward_backward()
    after = AfterReduction([made.ddp])
    after.look()
    assert after.norms is not None
    assert (len(after.pieces), after.norms.dtype) == (1, torch.float32)
    assert after.norms.tolist() == [pytest.approx(math.sqrt(180.0))]


def test_each_look_sees_what_stands_there_now(megatron: Any) -> None:
    made = trainer()
    made.forward_backward()
    after = AfterReduction([made.ddp])
    after.look()
    made.net.first.weight.main_grad[1, 1] = math.nan
    after.look()
    assert after.norms is not None
    assert math.isnan(after.norms.item())


def test_a_model_without_buffers_is_looked_at_parameter_by_parameter() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, bias=False))
    for value, param in enumerate(model.parameters(), start=3):
        param.grad = torch.full_like(param, value)
    after = AfterReduction([model])
    after.look()
    assert after.norms is not None
    assert after.norms.tolist() == [3.0, 4.0, 5.0]


def test_without_gradients_there_is_nothing_to_consume() -> None:
    after = AfterReduction([torch.nn.Linear(1, 1)])
    after.look()
    assert after.norms is None
