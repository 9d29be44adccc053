"""`check_grads(model)`: bad parameters by name, with counts and place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import megatron_nanguard
from megatron_nanguard.records.postmortem import BadParameter
from megatron_nanguard.watching import check_grads
from tests.unit.watching.models import GOOD, STEEP, Block, Mlp, leaf


def test_bad_parameters_are_listed_by_name() -> None:
    model = Block()
    model(leaf(STEEP)).sum().backward()
    # The gelu's gradient is NaN at 1: it reaches `up`, not `down`.
    (bad,) = check_grads(model)
    assert (bad.name, bad.shape, bad.pattern) == ("mlp.up.weight", (2,), "nan")
    assert (bad.nan_count, bad.inf_count, bad.counted_elements, bad.first_index) == (1, 0, 2, (1,))


def test_finite_gradients_give_an_empty_list() -> None:
    model = Block()
    assert check_grads(model) == []  # no backward yet
    model(leaf(GOOD)).sum().backward()
    assert check_grads(model) == []


def test_the_first_index_is_in_the_parameters_own_shape() -> None:
    model = torch.nn.Linear(4, 3)
    model.weight.grad = torch.zeros(3, 4)
    model.weight.grad[1, 2] = math.inf
    model.weight.grad[2, 0] = -math.inf
    assert check_grads(model) == [
        BadParameter(
            name="weight",
            local_name="weight",
            shape=(3, 4),
            norm=math.inf,
            pattern="inf",
            nan_count=0,
            inf_count=2,
            counted_elements=12,
            first_index=(1, 2),
        )
    ]


def test_the_main_gradient_counts_where_there_is_one() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.full((1, 2), math.nan)
    model.weight.main_grad = torch.zeros(1, 2)  # type: ignore[assignment]
    assert check_grads(model) == []
    model.weight.main_grad[0, 1] = math.nan  # type: ignore[index]
    assert [bad.first_index for bad in check_grads(model)] == [(0, 1)]


def test_the_sparse_gradient_of_an_embedding_is_looked_at() -> None:
    model = torch.nn.Embedding(10, 2, sparse=True)
    (model(torch.tensor([3])) * math.nan).sum().backward()
    (bad,) = check_grads(model)
    assert (bad.name, bad.nan_count, bad.counted_elements, bad.first_index) == ("weight", 2, 2, None)


def test_one_host_read_where_all_is_well(host_reads: Callable[[Callable[[], Any]], int]) -> None:
    model = Mlp()
    model(leaf(GOOD)).sum().backward()
    assert host_reads(lambda: check_grads(model)) == 1


def test_it_can_be_reached_from_the_package() -> None:
    assert megatron_nanguard.check_grads is check_grads
