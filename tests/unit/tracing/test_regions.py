"""Gradients of an autograd.Function are named after the arguments of its forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_nanguard.tracing.regions import gradient_names, is_region


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


WANTS, PLAIN = torch.ones(2, requires_grad=True), torch.ones(2)


@pytest.mark.parametrize(
    ("function", "args", "names"),
    [
        (Attend, (True, WANTS, WANTS, 0.5, WANTS), ["grad of q", "grad of k", "grad of v"]),
        (Attend, (True, WANTS, PLAIN, 0.5, WANTS), ["grad of q", "1", "grad of v"]),
        (SetUpApart, (WANTS, WANTS), ["grad of q", "grad of k"]),
        (AnyNumber, (WANTS, WANTS), ["grad of 0", "grad of 1"]),
    ],
)
def test_names(function: Any, args: Any, names: list[str]) -> None:
    node = function.apply(*args).grad_fn
    assert is_region(node)
    assert gradient_names(node) == names


def test_node_of_an_operator_is_no_region() -> None:
    assert not is_region((WANTS * 2).grad_fn)
