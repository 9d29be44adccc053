"""Tensors in nested containers and their names; names of dtypes."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.tensor_names import dtype_name, named_tensors, tensors_in


@dataclass
class Batch:
    """A batch class as user code writes it."""

    tokens: Tensor


def test_tensors_in_containers_are_named_by_their_path() -> None:
    a, b, c, d = (torch.tensor(float(number)) for number in range(4))
    names = [name for name, _ in named_tensors((a, {"k": b, "other": [None, c]}, "text", (d,)))]
    assert names == ["0", "1.k", "1.other.1", "3.0"]
    assert [name for name, _ in named_tensors(a)] == [""]
    assert [name for name, _ in named_tensors({"hidden_states": a, "flag": True})] == ["hidden_states"]


def test_a_mapping_that_is_no_dict_is_a_container() -> None:
    assert [name for name, _ in named_tensors(UserDict(input_ids=torch.zeros(1)))] == ["input_ids"]


def test_a_path_keeps_keys_and_indexes_as_they_are() -> None:
    one, two = torch.zeros(1), torch.zeros(2)
    found = list(tensors_in([None, (one, {"k": two})]))
    assert [path for path, _ in found] == [(1, 0), (1, 1, "k")]
    assert [tensor is wanted for (_, tensor), wanted in zip(found, (one, two), strict=True)] == [True, True]
    assert list(tensors_in(one)) == [((), one)]


def test_objects_are_entered_only_by_the_attributes_that_the_caller_gives() -> None:
    item: dict[str, Any] = {"batch": Batch(torch.zeros(1)), "count": 3}
    assert list(named_tensors(item)) == []
    assert [name for name, _ in named_tensors(item, lambda value: getattr(value, "__dict__", {}))] == ["batch.tokens"]


def test_a_dtype_goes_by_its_short_name() -> None:
    assert dtype_name(torch.bfloat16) == "bfloat16"
    assert dtype_name(torch.float8_e4m3fn) == "float8_e4m3fn"
