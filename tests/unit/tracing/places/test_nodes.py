"""Nodes by number, where torch has no hook on creating them, and the names of the gradients a node returns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import Node

from megatron_nanguard.tracing.places.nodes import (
    NumberedNodes,
    argument_names,
    cpp_function_name,
    gradient_names,
    is_accumulation,
    short_name,
)
from megatron_nanguard.tracing.places.step_place import ForwardPlace, Step


class Here:
    """Gives the module that was set as the current place."""

    def __init__(self) -> None:
        self.module = ""

    def __call__(self) -> ForwardPlace:
        return ForwardPlace(self.module, Step(), "", None)


def made_in_threads(nodes: NumberedNodes, here: Here, modules: list[str]) -> list[Node]:
    """Let several threads create one node each, each in a module of its own, and return the nodes."""
    made: list[Node] = []

    def make(module: str) -> None:
        here.module = module
        made.append((torch.ones(1, requires_grad=True) * 2).grad_fn)
        nodes.note()

    # All threads live until the end, because a new thread can get the id of one that has ended.
    pools = [ThreadPoolExecutor(1) for _ in modules]
    for pool, module in zip(pools, modules, strict=True):
        pool.submit(make, module).result()
    for pool in pools:
        pool.shutdown()
    return made


def test_number_of_one_thread_is_found_from_another() -> None:
    here = Here()
    nodes = NumberedNodes(here)
    (node,) = made_in_threads(nodes, here, ["mlp"])
    made = nodes.forward_place(node)
    assert made is not None
    assert made.module == "mlp"


def test_number_that_two_other_threads_used_gives_no_place() -> None:
    here = Here()
    nodes = NumberedNodes(here)
    first, second = made_in_threads(nodes, here, ["mlp", "attention"])
    assert first._sequence_nr() == second._sequence_nr()
    assert nodes.forward_place(first) is None


def test_names() -> None:
    node = (torch.ones(1, requires_grad=True) * 2).grad_fn
    assert short_name(node) == "MulBackward0"
    leaf = node.next_functions[0][0]
    assert short_name(leaf) == "AccumulateGrad"
    assert (is_accumulation(node), is_accumulation(leaf)) == (False, True)


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, causal: bool, q: Tensor, k: Tensor, scale: float, v: Tensor) -> Tensor:
        return q + k + v

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, grad, grad, None, grad


class SetUpApart(torch.autograd.Function):
    @staticmethod
    def forward(q: Tensor, k: Tensor) -> Tensor:
        return q + k

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, grad


class AnyNumber(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        return tensors[0] + tensors[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, grad


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (Attend, ["grad of causal", "grad of q", "grad of k", "grad of scale", "grad of v"]),
        (SetUpApart, ["grad of q", "grad of k"]),
        (AnyNumber, []),
    ],
)
def test_gradients_of_a_function_are_named_after_its_arguments(function: Any, names: list[str]) -> None:
    assert gradient_names(function) == names


def test_a_function_whose_signature_cannot_be_read_has_no_argument_names() -> None:
    assert argument_names(print.__self__) == []
    assert argument_names(lambda x, *rest, scale=1: x) == ["x"]


def test_only_a_function_written_in_cpp_has_a_name_of_its_node() -> None:
    class CppNode:
        def name(self) -> str:
            return "torch::autograd::CppNode<extension::Scale>"

    assert cpp_function_name(CppNode()) == "Scale"
    assert cpp_function_name((torch.ones(1, requires_grad=True) * 2).grad_fn) == ""
