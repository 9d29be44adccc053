"""Marker fill: bits that survive copying and differ from any other NaN, and a pass in which fresh memory holds them."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_nanguard.tracing.marker_fill import MarkerFill, count_markers, fill_with_marker

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_marker_is_a_nan_that_is_counted(dtype: torch.dtype) -> None:
    tensor = torch.empty(3, 4, dtype=dtype)
    fill_with_marker(tensor)
    assert tensor.isnan().all()
    tensor[1, :3] = 1.0
    num_markers = count_markers(tensor)
    assert num_markers is not None
    assert int(num_markers) == 9


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_nan_is_not_the_marker(dtype: torch.dtype) -> None:
    num_markers = count_markers(torch.full((5,), math.nan, dtype=dtype))
    assert num_markers is not None
    assert int(num_markers) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_marker_survives_copies_and_views(dtype: torch.dtype) -> None:
    tensor = torch.empty(4, 4, dtype=dtype)
    fill_with_marker(tensor)
    num_markers = count_markers(torch.cat([tensor.t().clone(), torch.ones(1, 4, dtype=dtype)]))
    assert num_markers is not None
    assert int(num_markers) == 16


def test_strided_memory_is_filled() -> None:
    tensor = torch.empty_strided((2, 3), (1, 2))
    fill_with_marker(tensor)
    assert tensor.isnan().all()


def test_other_dtypes_are_left_alone() -> None:
    tensor = torch.zeros(3, dtype=torch.int32)
    fill_with_marker(tensor)
    assert tensor.tolist() == [0, 0, 0]
    assert count_markers(tensor) is None


def test_memory_that_is_never_written_is_nan() -> None:
    with MarkerFill():
        half = torch.empty(4)
        half[:2].copy_(torch.ones(2))

    assert half.isnan().tolist() == [False, False, True, True]


def test_a_step_that_writes_before_it_reads_keeps_its_bits() -> None:
    torch.manual_seed(1)
    weight = torch.randn(4, 4, requires_grad=True)
    values = torch.randn(3, 4)
    (torch.nn.functional.gelu(values @ weight)).sum().backward()
    plain, weight.grad = weight.grad, None

    with MarkerFill():
        (torch.nn.functional.gelu(values @ weight)).sum().backward()

    assert weight.grad is not None and plain is not None
    assert torch.equal(weight.grad, plain)


def test_integers_are_left_alone() -> None:
    with MarkerFill():
        counts = torch.empty(3, dtype=torch.int64).zero_()

    assert counts.tolist() == [0, 0, 0]
