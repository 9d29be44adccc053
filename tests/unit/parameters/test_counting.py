from __future__ import annotations

import math

import pytest
import torch

from megatron_nanguard.megatron_api.pieces import reduced_pieces, surviving_local_pieces
from megatron_nanguard.parameters.counting import count_nonfinite
from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.records.postmortem import BadParameter
from tests.unit.factories import SIZES
from tests.unit.megatron_api.chunks import Chunk


def test_finite_gradients_are_no_finding() -> None:
    chunk = Chunk()
    assert count_nonfinite(ParameterMap([chunk], SIZES), reduced_pieces([chunk])) == []


def test_no_pieces_are_no_finding() -> None:
    assert count_nonfinite(ParameterMap([Chunk()], SIZES), []) == []


def test_counts_and_first_index_of_each_bad_parameter() -> None:
    chunk = Chunk()
    chunk.buffer.grad_data[2] = math.inf  # b[2]
    chunk.buffer.grad_data[[8, 9]] = math.nan  # a[1, 1] and a[1, 2]
    chunk.buffer.grad_data[6] = -math.inf  # a[0, 2]
    b, a = count_nonfinite(ParameterMap([chunk], SIZES), reduced_pieces([chunk]))
    assert b == BadParameter("b", "b", (3,), math.inf, "inf", 0, 1, 3, (2,))
    assert a.norm is not None and math.isnan(a.norm)
    assert (a.name, a.pattern, a.nan_count, a.inf_count, a.counted_elements, a.first_index) == (
        *("a", "nan+inf", 2, 1, 6, (0, 2)),
    )


def test_a_nan_in_the_padding_belongs_to_no_parameter() -> None:
    chunk = Chunk()
    chunk.buffer.grad_data[[3, 10]] = math.nan
    assert count_nonfinite(ParameterMap([chunk], SIZES), reduced_pieces([chunk])) == []


def test_only_the_shard_of_this_rank_is_counted() -> None:
    chunk = Chunk(rank=1, size=2, distributed=True)
    chunk.buffer.grad_data[[5, 7]] = math.nan  # a[0, 1] is another rank's, a[1, 0] this one's
    parameters = ParameterMap([chunk], SIZES)
    (reduced,) = count_nonfinite(parameters, reduced_pieces([chunk]))
    (local,) = count_nonfinite(parameters, surviving_local_pieces([chunk]))
    assert (reduced.counted_elements, reduced.nan_count, reduced.first_index) == (4, 1, (1, 0))
    assert (local.counted_elements, local.nan_count, local.first_index) == (2, 1, (0, 1))


def test_a_parameter_in_two_pieces_is_one_finding() -> None:
    chunk = Chunk(rank=1, size=2, distributed=True)
    chunk.buffer.grad_data[[5, 7]] = math.nan
    pieces = surviving_local_pieces([chunk]) + reduced_pieces([chunk])
    (found,) = count_nonfinite(ParameterMap([chunk], SIZES), pieces)
    assert (found.counted_elements, found.nan_count, found.first_index) == (6, 2, (0, 1))


def test_a_norm_that_overflows_over_finite_elements_is_said_to_be_finite() -> None:
    chunk = Chunk()
    chunk.buffer.grad_data[12:16] = 1e30
    (found,) = count_nonfinite(ParameterMap([chunk], SIZES), reduced_pieces([chunk]))
    assert found == BadParameter("c", "c", (4,), math.inf, "finite", 0, 0, 4, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_gradient_types(dtype: torch.dtype) -> None:
    chunk = Chunk()
    chunk.buffer.grad_data = chunk.buffer.grad_data.to(dtype)
    chunk.buffer.grad_data[13] = math.nan
    (found,) = count_nonfinite(ParameterMap([chunk], SIZES), reduced_pieces([chunk]))
    assert (found.name, found.pattern, found.first_index) == ("c", "nan", (1,))
