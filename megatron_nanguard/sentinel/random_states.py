"""A copy of all random states: restored in a replay, digested in a post-mortem, saved in a capture."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.device import Device
from megatron_nanguard.megatron_api import rng_tracker
from megatron_nanguard.records.postmortem import RngDigests


@dataclass(frozen=True, eq=False)
class RngStates:
    """A copy of every random state that a step can use.

    Attributes:
        python: state of the module `random`.
        numpy: state of numpy's legacy generator; None where numpy is not imported.
        torch_cpu: uint8, of torch's generator for the CPU.
        device: uint8, of the training device's generator.
        tracker: Megatron's named states of the device.
        current: the name of the tracker's current state; None without one.
    """

    python: tuple[Any, ...]
    numpy: tuple[Any, ...] | None
    torch_cpu: Tensor
    device: Tensor
    tracker: dict[str, Tensor]
    current: str | None

    @classmethod
    def now(cls, device: Device) -> RngStates:
        """Copy all states.

        Sync: none; the states live on the host.
        """
        return cls(
            python=random.getstate(),
            numpy=sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None,
            torch_cpu=torch.get_rng_state(),
            device=device.rng_state(),
            tracker=rng_tracker.states(),
            current=rng_tracker.current(),
        )

    def put_back(self, device: Device) -> dict[str, Callable[[], None]]:
        """Return a function per state that restores it, by name; each may be called repeatedly."""
        parts: dict[str, Callable[[], None]] = {
            "python random": partial(random.setstate, self.python),
            "torch random": partial(torch.set_rng_state, self.torch_cpu),
            "device random": partial(device.set_rng_state, self.device),
            "tracker random": partial(rng_tracker.put_back, self.tracker, self.current),
        }
        if self.numpy is not None:
            parts["numpy random"] = partial(sys.modules["numpy"].random.set_state, self.numpy)
        return parts

    def digests(self) -> RngDigests:
        """Return a digest of each state, twelve hex digits long."""
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
