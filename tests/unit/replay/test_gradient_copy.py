"""Copies of the gradients: where they are put, what they restore, and how gradients are compared with them."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_nanguard.device import CpuDevice
from megatron_nanguard.replay import gradient_copy
from megatron_nanguard.replay.gradient_copy import GradientCopy
from tests.unit.megatron_api.chunks import Chunk


class Full(CpuDevice):
    """A device with so many bytes free."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self) -> int:
        return self.free


def data(chunk: Chunk) -> torch.Tensor:
    found: torch.Tensor = chunk.buffer.grad_data
    return found


def test_the_copy_puts_back_what_was_there() -> None:
    chunk = Chunk()
    copy = GradientCopy([chunk], CpuDevice())
    assert copy.place == "device"
    data(chunk).zero_()
    assert copy.put_back()
    assert data(chunk).tolist() == [float(number) for number in range(16)]


@pytest.mark.parametrize(("free", "free_on_host", "place"), [(81, 0, "device"), (80, 81, "host"), (80, 80, "nowhere")])
def test_the_copy_goes_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, free: int, free_on_host: int, place: str
) -> None:
    # 16 elements of 4 bytes, and a quarter to spare, are 80.
    monkeypatch.setattr(gradient_copy, "device_of", lambda kind: Full(free_on_host))
    assert GradientCopy([Chunk()], Full(free)).place == place


def test_a_copy_on_the_host_puts_back_too() -> None:
    chunk = Chunk()
    copy = GradientCopy([chunk], CpuDevice(), place="host")
    data(chunk).fill_(2.0)
    assert copy.put_back()
    assert data(chunk).tolist() == [float(number) for number in range(16)]


def test_without_room_there_is_no_copy() -> None:
    copy = GradientCopy([Chunk()], CpuDevice(), place="nowhere")
    assert (copy.tensors, copy.put_back(), copy.largest_difference()) == (None, False, None)
    assert copy.agrees_where_finite() is None


def test_main_grads_outside_of_the_buffer_are_kept_too() -> None:
    chunk = Chunk()
    chunk.buffer.extra_main_grads = [torch.ones(3)]
    copy = GradientCopy([chunk], CpuDevice())
    chunk.buffer.extra_main_grads[0].zero_()
    assert copy.largest_difference() == 1.0
    copy.put_back()
    assert chunk.buffer.extra_main_grads[0].tolist() == [1.0, 1.0, 1.0]


def test_a_difference_is_relative_to_the_largest_gradient() -> None:
    chunk = Chunk()
    copy = GradientCopy([chunk], CpuDevice())
    assert copy.largest_difference() == 0.0
    data(chunk)[3] += 1.5
    assert copy.largest_difference() == pytest.approx(0.1)


def test_what_is_finite_both_times_is_compared_bit_for_bit() -> None:
    chunk = Chunk()
    copy = GradientCopy([chunk], CpuDevice())
    data(chunk)[3] = math.nan
    assert copy.agrees_where_finite() is True
    data(chunk)[4] += 0.5
    assert copy.agrees_where_finite() is False


def test_a_copy_is_compared_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    # 16 elements in pieces of 4: the largest, 15, lies in another piece than what differs.
    monkeypatch.setattr(gradient_copy, "RUN", 4)
    chunk = Chunk()
    copy = GradientCopy([chunk], CpuDevice())
    assert (copy.largest_difference(), copy.agrees_where_finite()) == (0.0, True)
    data(chunk)[5] += 1.5
    assert (copy.largest_difference(), copy.agrees_where_finite()) == (pytest.approx(0.1), False)
    data(chunk)[5] = math.nan
    assert (copy.largest_difference(), copy.agrees_where_finite()) == (math.inf, True)


@pytest.mark.parametrize(
    ("first", "again", "difference"),
    [(math.nan, math.nan, 0.0), (math.inf, math.inf, 0.0), (math.nan, 3.0, math.inf), (math.inf, -math.inf, math.inf)],
)
def test_what_is_not_finite_is_the_same_only_in_kind(first: float, again: float, difference: float) -> None:
    chunk = Chunk()
    data(chunk)[3] = first
    copy = GradientCopy([chunk], CpuDevice())
    data(chunk)[3] = again
    assert copy.largest_difference() == difference


def test_has_finite_needs_an_element_that_is_finite_both_times() -> None:
    chunk = Chunk()
    data(chunk).fill_(math.nan)
    data(chunk)[3] = 1.0
    copy = GradientCopy([chunk], CpuDevice())
    assert copy.has_finite()
    data(chunk)[3] = math.inf
    assert not copy.has_finite()
