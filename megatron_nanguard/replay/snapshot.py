"""Everything that a schedule call changes beside gradients, as it was at one moment.

random states, module buffers, sums for the log, bucket groups, rerun machine, timers
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import Module

from megatron_nanguard.device import Device
from megatron_nanguard.megatron_api import accumulators, bucket_state, rerun, rng_tracker, timers

PutBack = Callable[[], None]


@dataclass
class Snapshot:
    """State at one moment.

    Attributes:
        parts: what puts each part back, by its name; may be called as often as wanted.
    """

    parts: dict[str, PutBack] = field(default_factory=dict)

    @classmethod
    def capture(cls, chunks: Sequence[Module], device: Device) -> Snapshot:
        """Note the state now.

        Sync: none; on the device only module buffers and a few sums for the log are cloned.
        """
        return cls(
            {
                **_random_states(device),
                "buffers": _module_buffers(chunks),
                "accumulators": accumulators.keep(),
                "buckets": bucket_state.keep(chunks),
                "rerun": rerun.keep(),
                "timers": timers.keep(),
            }
        )

    def restore(self, *names: str) -> None:
        """Put the named parts back; all of them when none is named."""
        for name, put_back in self.parts.items():
            if not names or name in names:
                put_back()


def _random_states(device: Device) -> dict[str, PutBack]:
    states: dict[str, PutBack] = {
        "python random": partial(random.setstate, random.getstate()),
        "torch random": partial(torch.set_rng_state, torch.get_rng_state()),
        "device random": partial(device.set_rng_state, device.rng_state()),
        "tracker random": rng_tracker.keep(),
    }
    if "numpy" in sys.modules:
        numpy_random = sys.modules["numpy"].random
        states["numpy random"] = partial(numpy_random.set_state, numpy_random.get_state())
    return states


def _module_buffers(chunks: Sequence[Module]) -> PutBack:
    """By identity and by content: modules write into their buffers, and put others in their place."""
    kept = [
        (module._buffers, name, buffer, None if buffer is None else buffer.detach().clone())
        for chunk in chunks
        for module in chunk.modules()
        for name, buffer in module._buffers.items()
    ]

    def put_back() -> None:
        for buffers, name, buffer, content in kept:
            buffers[name] = buffer
            _write(buffer, content)

    return put_back


def _write(buffer: Tensor | None, content: Tensor | None) -> None:
    if buffer is not None and content is not None:
        buffer.detach().copy_(content)
