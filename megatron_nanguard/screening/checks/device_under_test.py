"""The device under test, as the checks see it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_nanguard.device import Device

REPEATS = 3
"""Calls of every computation, each compared: a fault may come and go."""
COPIES = 64
"""Of every problem, side by side on an accelerator: one alone would leave most of its compute units idle."""


@dataclass(frozen=True)
class DeviceUnderTest:
    """Where computations are tried.

    Attributes:
        device: for torch.
        backend: ours.
        memory_share: of the free memory that the memory check fills.
    """

    device: torch.device
    backend: Device
    memory_share: float

    @property
    def copies(self) -> int:
        """How many of the same problem make up one call."""
        return 1 if self.backend.backend == "cpu" else COPIES

    @property
    def memory_bytes(self) -> int:
        """What the memory check fills; the ranks of a host share its memory where they compute on the CPU."""
        sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if self.backend.backend == "cpu" else 1
        return int(self.backend.free_bytes() * self.memory_share / sharing)

    def spread(self, problem: Tensor) -> Tensor:
        """The problem on the device, `copies` times in memory of their own."""
        return problem.to(self.device).expand(self.copies, *problem.shape).contiguous()

    def repeat(self, compute: Callable[[], Tensor]) -> tuple[Sequence[Tensor], float]:
        """What each call gave, in host memory, and the seconds of the fastest.

        Sync: the host waits for the device.
        """
        outputs, seconds = [], []
        for _ in range(REPEATS):
            self.backend.synchronize()
            began = time.monotonic()
            output = compute()
            self.backend.synchronize()
            seconds.append(time.monotonic() - began)
            outputs.append(output.cpu())
        return outputs, min(seconds)
