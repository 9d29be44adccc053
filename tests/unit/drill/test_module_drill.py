"""Reaching into what a module takes and returns."""

from __future__ import annotations

import torch

from megatron_nanguard.drill.module_drill import replace_first


def test_only_the_first_wanted_tensor_changes_and_the_structure_stays() -> None:
    numbers, first, second = torch.tensor([1]), torch.tensor([2.0]), torch.tensor([3.0])
    value = (numbers, {"a": [None, first], "b": second}, "text")
    changed, found = replace_first(value, torch.is_floating_point, lambda tensor: tensor * 10)
    assert found
    assert changed == (numbers, {"a": [None, torch.tensor([20.0])], "b": second}, "text")
    assert changed[1]["b"] is second
    assert first.item() == 2.0


def test_nothing_wanted_is_said() -> None:
    value = (torch.tensor([1]), None)
    changed, found = replace_first(value, torch.is_floating_point, lambda tensor: tensor * 10)
    assert not found
    assert changed == value
