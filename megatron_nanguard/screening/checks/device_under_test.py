"""The device that the checks test."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_nanguard.device import Device

REPEATS = 3
"""Calls of every computation; each is compared, since a fault may be intermittent."""
COPIES = 64
"""Copies of every problem on an accelerator: a single one would leave most compute units idle."""


@dataclass(frozen=True)
class DeviceUnderTest:
    """A device, and how much of it is tested.

    Attributes:
        device: as torch names it.
        backend: the same device, for queries.
        memory_share: share of the free memory that the memory check writes.
    """

    device: torch.device
    backend: Device
    memory_share: float

    @property
    def copies(self) -> int:
        """Copies of the problem in one call."""
        return 1 if self.backend.backend == "cpu" else COPIES

    @property
    def memory_bytes(self) -> int:
        """Bytes that the memory check writes; on the CPU all ranks of a host share its memory."""
        sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if self.backend.backend == "cpu" else 1
        return int(self.backend.free_bytes() * self.memory_share / sharing)

    def repeat(self, compute: Callable[..., Tensor], *problem: Tensor) -> tuple[Sequence[Tensor], float]:
        """Run a computation `REPEATS` times on the device.

        Args:
            compute: takes the tensors of the problem.
            problem: copied to the device `copies` times, each copy into memory of its own.
        Returns:
            The outputs, [copies, ...] in host memory, and the seconds of the fastest call.
        Sync: the host waits for the device.
        """
        on_device = [each.to(self.device).expand(self.copies, *each.shape).contiguous() for each in problem]
        outputs, seconds = [], []
        for _ in range(REPEATS):
            self.backend.synchronize()
            began = time.monotonic()
            output = compute(*on_device)
            self.backend.synchronize()
            seconds.append(time.monotonic() - began)
            outputs.append(output.cpu())
        return outputs, min(seconds)
