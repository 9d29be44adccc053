"""Replays under changed conditions change just that condition, for their own length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from megatron_nanguard.device.cpu import CpuDevice
from megatron_nanguard.replay.changed_conditions import Synchronous, lower_scale
from megatron_nanguard.replay.in_place import DecisionPoint, replay
from tests.unit.replay.recorded import FIRST, SECOND, Recorded


class Waiting(CpuDevice):
    """Counts how often the host waits."""

    def __init__(self) -> None:
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


def test_the_host_waits_after_every_operator_backward_included(recorded: Recorded) -> None:
    call = recorded.forward_backward()
    point = DecisionPoint.take(call)
    device = Waiting()
    waits: dict[bool, int] = {}

    @contextmanager
    def at(microbatch: int | None, chunk: int, in_backward: bool) -> Iterator[None]:
        before = device.waits
        yield
        waits[in_backward] = device.waits - before

    result = replay(call, Synchronous(device), at)
    assert point.compare(result).exact
    # A forward is two matrix products and a sum at least, a backward four products.
    assert waits[False] >= 3
    assert waits[True] >= 4


def test_a_lower_scale_makes_gradients_smaller_and_is_gone_afterwards(recorded: Recorded) -> None:
    call = recorded.forward_backward()
    before = recorded.trainer.config.grad_scale_func
    replay(call, lower_scale(call.chunks, 0.5))
    assert recorded.gradients() == [[[3.75, 1.25], [4.5, 1.5]], [[1.25, 3.25]]]
    assert recorded.trainer.config.grad_scale_func is before
    replay(call)
    assert recorded.gradients() == [FIRST, SECOND]


def test_an_overflow_of_the_scale_is_finite_under_a_lower_one(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch, fp16=True, initial_loss_scale=65536.0, min_loss_scale=1.0, loss_scale_window=2)
    call = recorded.forward_backward()
    assert not torch.tensor(recorded.gradients()[0]).isfinite().all()
    replay(call, lower_scale(call.chunks))
    assert torch.tensor(recorded.gradients()[0]).isfinite().all()


def test_a_model_without_a_scaler_has_nothing_to_lower(recorded: Recorded) -> None:
    recorded.trainer.config.grad_scale_func = None
    call = recorded.forward_backward()
    replay(call, lower_scale(call.chunks))
    assert recorded.gradients() == [FIRST, SECOND]
