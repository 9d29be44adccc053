"""A copy of the gradients of the first pass, where there is room for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Module

from megatron_nanguard.device import Device, device_of
from megatron_nanguard.megatron_api.bucket_state import gradient_tensors

Place = Literal["device", "host", "nowhere"]

SPARE = 1.25
"""Room asked for, in copies: the replay needs some beside it."""


class GradientCopy:
    """The gradients at one moment.

    Args:
        chunks: whose.
        device: where they live.
        place: where the copy goes; chosen by the room there is when not given.
    Attributes:
        place: "nowhere" where neither device nor host has room: nothing can be put back then, but a replay that is
            exact leaves the very same gradients behind.
        tensors: the copies, in the order of `gradient_tensors`; None where there is no room.
    """

    def __init__(self, chunks: Sequence[Module], device: Device, place: Place | None = None) -> None:
        self._originals = gradient_tensors(chunks)
        self.place: Place = place or _place(sum(t.nbytes for t in self._originals), device)
        self.tensors: list[Tensor] | None = None
        if self.place == "device":
            self.tensors = [tensor.detach().clone() for tensor in self._originals]
        elif self.place == "host":
            self.tensors = [tensor.detach().to("cpu", copy=True) for tensor in self._originals]

    @torch.no_grad()
    def put_back(self) -> bool:
        """Write the copy over the gradients; False where there is none."""
        if self.tensors is None:
            return False
        for original, kept in zip(self._originals, self.tensors, strict=True):
            original.copy_(kept)
        return True

    @torch.no_grad()
    def largest_difference(self) -> float | None:
        """Largest difference of the gradients now from the copy, relative to the largest finite one of their tensor.

        Returns:
            Infinity where a value is finite in only one of the two; None where there is no copy.
        Sync: one host read per tensor.
        """
        if self.tensors is None:
            return None
        pairs = zip(self.tensors, self._originals, strict=True)
        return max((_relative(kept.to(now.device), now) for kept, now in pairs if now.numel()), default=0.0)


def _relative(kept: Tensor, now: Tensor) -> float:
    both = kept.isfinite() & now.isfinite()
    same_kind = both | (kept == now) | (kept.isnan() & now.isnan())
    scale = torch.where(both, kept.abs(), 0).max().clamp_min(torch.finfo(torch.float32).tiny)
    difference = torch.where(both, (kept - now).abs(), 0).max() / scale
    return float(torch.where(same_kind.all(), difference, torch.inf))


def _place(num_bytes: int, device: Device) -> Place:
    if device.free_bytes() > SPARE * num_bytes:
        return "device"
    return "host" if device_of("cpu").free_bytes() > SPARE * num_bytes else "nowhere"
