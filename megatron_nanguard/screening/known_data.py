"""Data that every rank can generate from a key, so that the receiver knows what should arrive."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from megatron_nanguard.replay.digests import named_digests


def random_bytes(numel: int, *key: object) -> Tensor:
    """uint8 [numel] in host memory, the same on every rank for the same key."""
    return torch.randint(0, 256, (numel,), dtype=torch.uint8, generator=_generator(key))


def integers(shape: tuple[int, ...], largest: int, *key: object) -> Tensor:
    """float32 in host memory, whole numbers from -largest to largest; sums are exact in any order."""
    return torch.randint(-largest, largest + 1, shape, generator=_generator(key)).float()


def normals(shape: tuple[int, ...], *key: object) -> Tensor:
    """float32 in host memory, normally distributed."""
    return torch.randn(shape, generator=_generator(key))


def digest_of(tensor: Tensor) -> str:
    """16 hex digits, computed on the host because the tensor's device may be faulty.

    Sync: the host waits for the device.
    """
    return named_digests({"": tensor.cpu()})[""]


def _generator(key: tuple[object, ...]) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))
