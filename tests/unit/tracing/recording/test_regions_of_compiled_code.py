"""Regions whose kernels a compiler made: a graph of torch.compile, and a Function written in C++."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import cpp_extension

from tests.unit.tracing.unseen_kernels import WIDTH, Call, Layer, between, places

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
    pytest.mark.timeout(300),
]


def block(x: Tensor) -> Tensor:
    return x.sin() @ torch.ones(WIDTH, WIDTH)


def block_with_fault(x: Tensor) -> Tensor:
    return torch.log(-x.sin().abs() - 1) @ torch.ones(WIDTH, WIDTH)


def compiled(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Compile a function and its backward before the traced pass, as training does in its first steps."""
    fast = torch.compile(function)
    fast(torch.ones(3, WIDTH, requires_grad=True)).sum().backward()
    return fast


@pytest.mark.parametrize(
    ("fault_before", "function", "origins"),
    [
        ("", block, []),
        ("forward", block, [("Linear.forward", "1")]),
        ("", block_with_fault, [("CompiledFunction.forward", "2")]),
    ],
)
def test_a_compiled_graph_is_a_region(
    fault_before: str, function: Callable[[Tensor], Tensor], origins: list[tuple[str, str]]
) -> None:
    assert places(between(Layer(fault_before), Call(compiled(function)), Layer())) == origins


@pytest.fixture(scope="module")
def scale() -> Any:
    """An operator around a Function that is written in C++; torch keeps what it has built for the next run."""
    if not cpp_extension.is_ninja_available():
        pytest.skip("needs ninja")
    source = Path(__file__).with_name("pointer_scale.cpp")
    cpp_extension.load("nanguard_pointer_scale", [str(source)], extra_cflags=["-O0"], is_python_module=False)
    return torch.ops.nanguard_tests_cpp.scale


@pytest.mark.parametrize(
    ("faults", "origins"),
    [
        ((False, False), []),
        ((True, False), [("Call.forward", "3")]),
        ((False, True), [("PointerScaleBackward", "3")]),
    ],
)
def test_the_backward_of_a_function_in_cpp_is_a_region(
    scale: Any, faults: tuple[bool, bool], origins: list[tuple[str, str]]
) -> None:
    healthy = (False, False)
    model = between(Call(scale, *healthy), Layer(), Call(scale, *faults), Layer(), Call(scale, *healthy))
    assert places(model) == origins
