"""A close look: counts, positions, and what the positions have in common."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from megatron_nanguard.records.trace import TensorFacts
from megatron_nanguard.tracing.recording.tensor_facts import look_closely, number_facts


def spoiled(shape: tuple[int, ...], spoil: Callable[[Tensor], object]) -> Tensor:
    tensor = torch.ones(shape)
    spoil(tensor)
    return tensor


def nan_at(*index: int | slice) -> Callable[[Tensor], object]:
    return lambda tensor: tensor.__setitem__(index, math.nan)


def nan_in_memory(start: int, end: int) -> Callable[[Tensor], object]:
    return lambda tensor: tensor.view(-1).__setitem__(slice(start, end), math.nan)


def test_everything_of_a_mixed_tensor() -> None:
    tensor = torch.tensor([[1.0, -7.0, math.nan], [math.inf, 2.0, -math.inf]], dtype=torch.bfloat16)
    assert look_closely(tensor, "dK") == TensorFacts(
        name="dK",
        shape=(2, 3),
        dtype="bfloat16",
        pattern="nan+inf",
        nan_count=1,
        inf_count=2,
        absmax=7.0,
        positions=((0, 2), (1, 0), (1, 2)),
        layout="",
        lowest=-7.0,
        highest=2.0,
    )


def test_healthy_tensor() -> None:
    healthy = TensorFacts("x", (2,), "float32", "finite", 0, 0, 1.0, lowest=1.0, highest=1.0)
    assert look_closely(torch.ones(2), "x") == healthy


def test_complex_elements_have_a_size_and_no_order() -> None:
    facts = look_closely(torch.tensor([3 + 4j]), "x")
    assert (facts.absmax, facts.lowest, facts.highest) == (5.0, None, None)


def test_a_plain_number_among_the_arguments() -> None:
    assert number_facts("value", math.nan) == TensorFacts("value", (), "number", "nan")
    assert number_facts("value", -math.inf) == TensorFacts("value", (), "number", "inf")


def test_integers_and_empty_tensors_are_finite_and_not_counted() -> None:
    assert look_closely(torch.ones(2, dtype=torch.int32), "x") == TensorFacts("x", (2,), "int32", "finite")
    assert look_closely(torch.ones(0, 3), "x") == TensorFacts("x", (0, 3), "float32", "finite")


def test_no_finite_element_has_no_magnitude() -> None:
    assert look_closely(torch.full((2,), math.inf), "x").absmax is None


def test_eight_positions_at_most() -> None:
    positions = look_closely(torch.full((3, 5), math.nan), "x").positions
    assert positions == ((0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2))


@pytest.mark.parametrize(
    ("shape", "spoil", "layout"),
    [
        ((4, 4), nan_at(1, 1), ""),
        ((4, 4), nan_at(slice(None)), "every element"),
        ((8, 4), nan_at(slice(5, 8)), "rows 5 to 7, to the end"),
        ((8, 4), nan_at(slice(5, 7)), "rows 5 to 6"),
        ((8, 4), nan_at(5), "row 5"),
        ((8, 4), nan_at(slice(None), slice(0, 2)), "columns 0 to 1"),
        ((6, 4, 3), nan_at(slice(1, 3), 2), "rows 1 to 2, head 2 (dim 1)"),
        ((6, 4, 3), nan_at(slice(None), slice(1, 3)), "heads 1 to 2 (dim 1)"),
        ((6, 5, 3), nan_at(slice(None), 2), "2 of dim 1"),
        ((8192,), nan_at(slice(2048, 4096)), "aligned block of 2048 from element 2048"),
        ((8000,), nan_at(slice(7000, 8000)), "tail of 1000 from element 7000"),
        ((8000,), nan_at(slice(3, 10)), "run of 7 from element 3"),
        (
            (16, 100),
            lambda t: t.view(-1).__setitem__(slice(1024, 1536), math.nan),
            "aligned block of 512 from element 1024",
        ),
        ((8,), lambda t: t.__setitem__([1, 4, 5], math.nan), ""),
        ((8, 4), lambda t: t.__setitem__([1, 4, 6], math.nan), ""),
    ],
)
def test_layouts(shape: tuple[int, ...], spoil: Callable[[Tensor], object], layout: str) -> None:
    assert look_closely(spoiled(shape, spoil), "x", heads={4}).layout == layout


def test_strided_tensor_is_looked_at_in_its_own_shape() -> None:
    tensor = spoiled((4, 3), nan_at(2, 1)).t()
    assert look_closely(tensor, "x").positions == ((1, 2),)
