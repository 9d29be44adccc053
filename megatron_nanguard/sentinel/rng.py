"""Random states at the start of a step, kept as they are and digested only on an alarm."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.device import Device
from megatron_nanguard.megatron_api import rng_tracker
from megatron_nanguard.records.postmortem import RngDigests


class RngStates:
    """A copy of every random state a step can draw from.

    Sync: none; the states live on the host.
    """

    def __init__(self, device: Device) -> None:
        self.python = random.getstate()
        self.numpy: Any = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
        self.torch_cpu = torch.get_rng_state()
        self.device = device.rng_state()
        self.tracker = rng_tracker.states()

    def digests(self) -> RngDigests:
        """Twelve hex digits of each state."""
        return RngDigests(
            python=_digest(repr(self.python).encode()),
            numpy="" if self.numpy is None else _digest(repr(self.numpy[1].tolist() + list(self.numpy[2:])).encode()),
            torch_cpu=_of_tensor(self.torch_cpu),
            device=_of_tensor(self.device),
            tracker={name: _of_tensor(state) for name, state in self.tracker.items()},
        )


def _of_tensor(state: Tensor) -> str:
    return _digest(state.cpu().contiguous().numpy().tobytes())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
