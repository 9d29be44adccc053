"""A copy of the gradients of the first pass, on the device or the host, where one of them has room for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from megatron_nanguard.device import Device, device_of
from megatron_nanguard.megatron_api.buffers import gradient_tensors
from megatron_nanguard.megatron_api.protocols import ModelChunk

Place = Literal["device", "host", "nowhere"]

SPARE = 1.25
"""Free memory that is required, as a multiple of the copy's size: the replay needs some too."""
RUN = 1 << 24
"""Elements that are compared at a time."""


class GradientCopy:
    """The gradients at one moment.

    Args:
        chunks: model chunks.
        device: of the model.
        place: where the copy goes; chosen by the free memory when not given.
    Attributes:
        place: "nowhere" where neither device nor host has room. Nothing can be put back then; an exact replay leaves
            the same gradients behind anyway.
        tensors: the copies, in the order of `gradient_tensors`; None where there is no room.
    """

    def __init__(self, chunks: Sequence[ModelChunk], device: Device, place: Place | None = None) -> None:
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
        return max((_relative(kept, now) for kept, now in pairs if now.numel()), default=0.0)

    @torch.no_grad()
    def agrees_where_finite(self) -> bool | None:
        """Whether every element that is finite in the copy and now is the same; None where there is no copy.

        Sync: one host read per tensor.
        """
        if self.tensors is None:
            return None
        pairs = zip(self.tensors, self._originals, strict=True)
        return all(_same_where_finite(kept, now) for kept, now in pairs)

    @torch.no_grad()
    def has_finite(self) -> bool:
        """Whether any element is finite in the copy and now.

        Sync: one host read per tensor, up to the first that has one.
        """
        pairs = zip(self.tensors or (), self._originals, strict=False)
        return any(bool((a.isfinite() & b.isfinite()).any()) for kept, now in pairs for a, b in _runs(kept, now))


def _same_where_finite(kept: Tensor, now: Tensor) -> bool:
    differing = [(a.isfinite() & b.isfinite() & (a != b)).any() for a, b in _runs(kept, now)]
    return not differing or not bool(torch.stack(differing).any())


def _relative(kept: Tensor, now: Tensor) -> float:
    same_kind, largest, differences = [], [], []
    for a, b in _runs(kept, now):
        both = a.isfinite() & b.isfinite()
        same_kind.append((both | (a == b) | (a.isnan() & b.isnan())).all())
        largest.append(torch.where(both, a.abs(), 0).max())
        differences.append(torch.where(both, (a - b).abs(), 0).max())
    scale = torch.stack(largest).max().clamp_min(torch.finfo(torch.float32).tiny)
    difference = torch.stack(differences).max() / scale
    return float(torch.where(torch.stack(same_kind).all(), difference, torch.inf))


def _runs(kept: Tensor, now: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut both into pieces on the device of `now`: the intermediate tensors of a comparison must stay small."""
    for a, b in zip(torch.split(kept.reshape(-1), RUN), torch.split(now.reshape(-1), RUN), strict=True):
        if b.numel():
            yield a.to(b.device), b


def _place(num_bytes: int, device: Device) -> Place:
    if device.free_bytes() > SPARE * num_bytes:
        return "device"
    return "host" if device_of("cpu").free_bytes() > SPARE * num_bytes else "nowhere"
