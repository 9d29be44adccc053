"""Tensors that a call can reach through its arguments, with their names."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

from megatron_nanguard.tracing.calls.nested_tensors import tensors_within


def tensor() -> Tensor:
    return torch.ones(1)


def names(value: object, name: str = "") -> list[str]:
    return [found for found, _ in tensors_within(value, name)]


@dataclass
class Box:
    content: Any


class Pair(NamedTuple):
    first: Any
    second: Any


class Raising:
    """Raises when it is asked for its attributes."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class RaisingList(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("no elements")


class RaisingKey:
    def __str__(self) -> str:
        raise RuntimeError("no name")


class Wrapper(Tensor):
    """Has no memory of its own, like a quantized tensor."""

    @staticmethod
    def __new__(cls, data: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, (1,))

    def __init__(self, data: Any) -> None:
        self._data = data

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("no operator may run on a wrapper")


def test_a_tensor_is_found_by_the_name_of_the_argument() -> None:
    x = tensor()
    assert list(tensors_within(x, "x")) == [("x", x)]


def test_containers_and_objects_are_walked_and_their_contents_named() -> None:
    value = {"list": [tensor(), (tensor(),)], "box": Box(tensor()), "pair": Pair(tensor(), Box([tensor()]))}
    assert names(value) == ["list.0", "list.1.0", "box.content", "pair.0", "pair.1.content.0"]
    assert names([tensor()], "tensors") == ["tensors.0"]


def test_each_of_several_alike_containers_is_walked() -> None:
    assert names([Box([tensor()]), Box((tensor(), [tensor()])), [[tensor()], [tensor()]]]) == [
        "0.content.0",
        "1.content.0",
        "1.content.1.0",
        "2.0.0",
        "2.1.0",
    ]


@pytest.mark.parametrize("value", [None, 1, 1.0, "text", torch.float32, [], {}, print, Box, nn.Linear(1, 1), {1, 2}])
def test_what_holds_no_tensors_of_its_own_yields_nothing(value: object) -> None:
    assert names({"value": value}) == []


def test_the_depth_is_limited() -> None:
    value: Any = tensor()
    for _ in range(7):
        value = [value]
    assert names(value) == ["0.0.0.0.0.0.0"]
    assert names([value]) == []


def test_the_number_of_tensors_is_limited() -> None:
    assert len(names([tensor()] * 200)) == 128


def test_a_value_that_contains_itself_is_walked_once() -> None:
    loop: list[Any] = [tensor()]
    loop.append(loop)
    box = Box(tensor())
    box.content = [box, tensor()]
    assert names([loop, loop, box]) == ["0.0", "2.content.1"]


def test_long_containers_cost_little() -> None:
    numbers = list(range(1_000_000))
    value = {"ids": numbers, "by id": dict.fromkeys(numbers), "x": tensor()}
    start = time.perf_counter()
    assert names(value) == ["x"]
    assert time.perf_counter() - start < 0.1


def test_of_a_wrapper_the_inner_tensors_are_found() -> None:
    wrapper = Wrapper(Wrapper(tensor()))
    wrapper._scale = tensor()
    wrapper._quantizer = Box(tensor())
    assert names(wrapper, "x") == ["x._data._data", "x._scale", "x._quantizer.content"]


def test_gradients_are_no_part_of_a_tensor() -> None:
    weight = Parameter(tensor())
    weight.main_grad, weight.grad = tensor(), tensor()
    assert names(weight, "weight") == ["weight"]
    wrapper = Wrapper(tensor())
    wrapper.main_grad = tensor()
    assert names(wrapper, "weight") == ["weight._data"]


def test_of_a_tensor_under_a_transform_the_inner_one_is_found() -> None:
    seen: list[str] = []
    torch.func.vmap(lambda x: seen.extend(names(x, "x")) or x)(torch.ones(2, 3))
    assert seen == ["x"]


def test_a_fake_tensor_yields_nothing() -> None:
    with FakeTensorMode():
        assert names([torch.empty(1)]) == []


@pytest.mark.parametrize("new", [Raising, lambda: RaisingList([1]), lambda: {RaisingKey(): tensor()}])
def test_an_object_that_raises_costs_itself_alone(new: Callable[[], object]) -> None:
    unreadable: list[str] = []
    found = tensors_within({"before": tensor(), "value": new(), "after": tensor()}, "x", unreadable)
    assert [name for name, _ in found] == ["x.before", "x.after"]
    assert unreadable == ["x.value"]
