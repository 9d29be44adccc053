"""The marker: bits that survive copying and are told from any other NaN."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_nanguard.tracing import marker

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_marker_is_a_nan_that_is_counted(dtype: torch.dtype) -> None:
    tensor = torch.empty(3, 4, dtype=dtype)
    marker.fill(tensor)
    assert tensor.isnan().all()
    tensor[1, :3] = 1.0
    count = marker.count(tensor)
    assert count is not None
    assert int(count) == 9


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_nan_is_not_the_marker(dtype: torch.dtype) -> None:
    count = marker.count(torch.full((5,), math.nan, dtype=dtype))
    assert count is not None
    assert int(count) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_marker_survives_copies_and_views(dtype: torch.dtype) -> None:
    tensor = torch.empty(4, 4, dtype=dtype)
    marker.fill(tensor)
    count = marker.count(torch.cat([tensor.t().clone(), torch.ones(1, 4, dtype=dtype)]))
    assert count is not None
    assert int(count) == 16


def test_strided_memory_is_filled() -> None:
    tensor = torch.empty_strided((2, 3), (1, 2))
    marker.fill(tensor)
    assert tensor.isnan().all()


def test_other_dtypes_are_left_alone() -> None:
    tensor = torch.zeros(3, dtype=torch.int32)
    marker.fill(tensor)
    assert tensor.tolist() == [0, 0, 0]
    assert marker.count(tensor) is None
