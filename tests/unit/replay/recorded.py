"""A trainer of one rank whose schedule calls are recorded, as the guard records them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_nanguard.device import CpuDevice
from megatron_nanguard.replay.step_recorder import RecordedCall, StepRecorder
from tests.unit.one_rank import Trainer, trainer

TWO = (torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 0.0]]))
"""Two micro-batches. h = [3, 7] and [2, 6], x summed is [3, 1]: the mean gradients are half of that."""
FIRST = [[7.5, 2.5], [9.0, 3.0]]
SECOND = [[2.5, 6.5]]


class Recorded:
    """The trainer and its recorder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        from megatron.core.pipeline_parallel import schedules

        self.trainer: Trainer = trainer(ddp={"check_for_nan_in_grad": False}, **options)
        self.recorder = StepRecorder([self.trainer.ddp], CpuDevice())
        original = schedules.forward_backward_no_pipelining
        monkeypatch.setattr(
            schedules,
            "forward_backward_no_pipelining",
            lambda **kwargs: original(**self.recorder.open(original, kwargs)),
        )

    def forward_backward(self, inputs: Sequence[Tensor] = TWO, **changes: Any) -> RecordedCall:
        """One pass over fresh gradients."""
        self.trainer.forward_backward(inputs, **changes)
        return self.call

    @property
    def call(self) -> RecordedCall:
        assert self.recorder.call is not None
        return self.recorder.call

    def gradients(self) -> list[Any]:
        """Of both weights."""
        return [param.main_grad.tolist() for param in self.trainer.net.parameters()]


@pytest.fixture
def recorded(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    yield Recorded(monkeypatch)
