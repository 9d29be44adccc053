"""What counts as beyond the limit, and how it is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_nanguard.records.trace import TensorFacts
from megatron_nanguard.watching.value_checks import facts_of, is_beyond

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("tensor", "above", "expected"),
    [
        (torch.tensor([1.0, -2.0]), None, False),
        (torch.tensor([1.0, NAN]), None, True),
        (torch.tensor([-INF, 1.0]), None, True),
        (torch.tensor([1.0, -2.0]), 2.0, False),
        (torch.tensor([1.0, -2.5]), 2.0, True),
        (torch.tensor([65504.0], dtype=torch.float16), None, False),
        (torch.tensor([65504.0], dtype=torch.float16), 1e6, False),
        (torch.tensor([INF], dtype=torch.float16), 1e6, True),
        (torch.tensor([3e38], dtype=torch.bfloat16), None, False),
        (torch.tensor([1e300], dtype=torch.float64), None, False),
        (torch.tensor([1e300], dtype=torch.float64), 1e4, True),
        (torch.tensor([complex(0, NAN)]), None, True),
        (torch.tensor([10**9]), 1.0, False),
        (torch.tensor([True]), None, False),
        (torch.empty(0), None, False),
        (torch.tensor([NAN]).to_sparse(), None, False),
        (torch.tensor([1.0]).to(torch.float8_e4m3fn), 0.5, False),
    ],
)
def test_a_value_is_beyond_if_no_comparison_keeps_it_within(
    tensor: Tensor, above: float | None, expected: bool
) -> None:
    assert is_beyond([tensor], above) is expected


def test_all_tensors_cost_one_host_read(host_reads: Callable[[Callable[[], Any]], int]) -> None:
    values = [torch.ones(3), torch.ones(2, dtype=torch.float16), torch.ones(4).double()]
    assert host_reads(lambda: is_beyond(values, None)) == 1
    assert host_reads(lambda: is_beyond([], None)) == 0


def test_facts_give_counts_largest_finite_value_and_first_positions() -> None:
    tensor = torch.tensor([[1.0, NAN, -7.0], [INF, 2.0, -INF]])
    assert facts_of("x", tensor, None) == TensorFacts(
        name="x",
        shape=(2, 3),
        dtype="float32",
        pattern="nan+inf",
        nan_count=1,
        inf_count=2,
        absmax=7.0,
        positions=((0, 1), (1, 0), (1, 2)),
    )
    assert facts_of("x", torch.ones(2), None) is None


def test_positions_are_those_above_the_limit_too_and_at_most_eight() -> None:
    facts = facts_of("x", torch.arange(20.0), 9.5)
    assert facts is not None
    assert facts.pattern == "finite"
    assert facts.positions == tuple((index,) for index in range(10, 18))
    assert facts_of("x", torch.full((3,), NAN), None).absmax is None  # type: ignore[union-attr]
