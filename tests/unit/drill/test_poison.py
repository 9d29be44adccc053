"""Which elements a pattern hits; expected places by hand."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_nanguard.drill.grammar import parse
from megatron_nanguard.drill.poison import ElementRange, poison, positions
from megatron_nanguard.drill.spec import Drill
from megatron_nanguard.errors import DrillError


def drill(pattern: str, index: int | None = None) -> Drill:
    suffix = "" if index is None else f",index={index}"
    return parse(f"{pattern}@step=1,rank=0,phase=reduced,param=w{suffix}")[0]


@pytest.mark.parametrize(
    ("pattern", "index", "expected"),
    [
        ("nan", None, [0]),
        ("inf", 7, [7]),
        ("row", None, [0, 1, 2, 3]),
        ("row", 2, [8, 9, 10, 11]),
        ("head", None, [0, 1, 4, 5, 8, 9]),
        ("head", 1, [2, 3, 6, 7, 10, 11]),
    ],
)
def test_places_in_a_whole_tensor(pattern: str, index: int | None, expected: list[int]) -> None:
    whole = ElementRange((3, 4), 0, 12)
    assert positions(whole, drill(pattern, index), head_width=2).tolist() == expected


@pytest.mark.parametrize(
    ("pattern", "index", "expected"),
    [
        ("nan", None, [6]),
        ("nan", 8, [8]),
        ("nan", 5, []),
        ("row", None, [6, 7]),
        ("row", 2, [8, 9, 10]),
        ("head", None, [6, 7, 10]),
        ("head", 0, [8, 9]),
    ],
)
def test_places_in_a_shard_are_those_of_the_parameter_that_it_holds(
    pattern: str, index: int | None, expected: list[int]
) -> None:
    shard = ElementRange((3, 4), 6, 11)
    assert positions(shard, drill(pattern, index), head_width=2).tolist() == expected


def test_a_head_with_a_dim_of_its_own_is_that_one_of_the_heads() -> None:
    whole = ElementRange((2, 3, 2), 0, 12)
    assert positions(whole, drill("head", 2), head_width=2).tolist() == [4, 5, 10, 11]


@pytest.mark.parametrize(("pattern", "value"), [("inf", math.inf), ("-inf", -math.inf), ("1e30", 1e30)])
def test_the_value_of_the_pattern_is_written_and_nothing_else_changes(pattern: str, value: float) -> None:
    tensor = torch.arange(6.0).view(2, 3)
    poison(tensor, ElementRange.whole(tensor), drill(pattern, 4), previous=None, head_width=None)
    assert tensor.tolist() == [[0.0, 1.0, 2.0], [3.0, torch.tensor(value).item(), 5.0]]


def test_a_tensor_with_other_strides_is_written_at_its_own_index() -> None:
    tensor = torch.zeros(3, 2).t()
    poison(tensor, ElementRange.whole(tensor), drill("nan", 4), previous=None, head_width=None)
    assert tensor.isnan().tolist() == [[False, False, False], [False, True, False]]


def test_a_scalar_is_its_own_first_element() -> None:
    tensor = torch.tensor(1.0)
    poison(tensor, ElementRange.whole(tensor), drill("nan"), previous=None, head_width=None)
    assert tensor.isnan().item()


def test_a_shard_is_written_at_its_offset() -> None:
    shard = torch.zeros(5)
    poison(shard, ElementRange((3, 4), 6, 11), drill("row", 2), previous=None, head_width=None)
    assert shard.isnan().tolist() == [False, False, True, True, True]


def test_stale_brings_back_the_values_before() -> None:
    tensor = torch.zeros(2, 2)
    poison(tensor, ElementRange.whole(tensor), drill("stale"), previous=torch.ones(2, 2), head_width=None)
    assert tensor.tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("pattern", "previous", "reason"),
    [
        ("stale", None, "there was no execution before this one"),
        ("stale", torch.zeros(3), r"the execution before had shape \(3,\), this one has \(4,\)"),
        ("nan", None, r"nan index 9 is outside \[0, 4\) of \(4,\)"),
    ],
)
def test_what_cannot_be_written_says_why_and_leaves_the_values(
    pattern: str, previous: torch.Tensor | None, reason: str
) -> None:
    tensor = torch.zeros(4)
    with pytest.raises(DrillError, match=reason):
        poison(
            tensor,
            ElementRange.whole(tensor),
            drill(pattern, 9 if pattern == "nan" else None),
            previous,
            head_width=None,
        )
    assert tensor.tolist() == [0.0] * 4
