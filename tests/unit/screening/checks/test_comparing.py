"""Outputs compared with a reference."""

from __future__ import annotations

import math

import torch

from megatron_nanguard.screening.checks.comparing import exact, within

EXPECTED = torch.tensor([1.0, 2.0, 4.0])
RIGHT = EXPECTED.expand(2, 3)


def spoiled(value: float) -> torch.Tensor:
    output = RIGHT.clone()
    output[1, 2] = value
    return output


def test_the_same_values_are_right_in_every_copy() -> None:
    found = exact("sum", [RIGHT, RIGHT], EXPECTED, 0.5)
    assert (found.name, found.result, found.words, found.seconds) == ("sum", "right", "", 0.5)
    assert found.digest == exact("sum", [RIGHT], EXPECTED, 0.1).digest


def test_one_wrong_value_of_one_call_is_found_with_its_index() -> None:
    found = exact("sum", [RIGHT, spoiled(4.5), RIGHT], EXPECTED, 0.5)
    assert found.result == "wrong"
    assert found.words == "wrong in 1 of 3 calls, 1 of 6 values; worst [1, 2]: 4.5, expected 4"


def test_nan_and_inf_are_wrong() -> None:
    for value in (math.nan, math.inf):
        assert exact("sum", [spoiled(value)], EXPECTED, 0.5).result == "wrong"
        assert within("exp", [spoiled(value)], EXPECTED, torch.full((3,), 9.0).double(), 0.5).result == "wrong"


def test_a_bound_is_per_value() -> None:
    bound = torch.tensor([0.0, 0.0, 0.25]).double()
    assert within("exp", [spoiled(4.25)], EXPECTED, bound, 0.5).result == "right"
    assert within("exp", [spoiled(4.26)], EXPECTED, bound, 0.5).result == "wrong"
