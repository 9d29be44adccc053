"""Marker fill: fresh memory is filled with a NaN of known bits, so that what nobody wrote shows when it is read.

Bits are compared before any arithmetic: arithmetic is free to return another NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

_MARKER: Final[Mapping[torch.dtype, tuple[torch.dtype, int]]] = {
    torch.float64: (torch.int64, 0x7FF8DEADBEEF0001),
    torch.float32: (torch.int32, 0x7FC0DEAD),
    torch.bfloat16: (torch.int16, 0x7FD5),
    torch.float16: (torch.int16, 0x7ED5),
}


def fill(tensor: Tensor) -> None:
    """Fill fresh memory; leaves other dtypes alone."""
    if tensor.dtype in _MARKER and tensor.numel():
        integer, bits = _MARKER[tensor.dtype]
        tensor.detach().view(integer).fill_(bits)


def count(tensor: Tensor) -> Tensor | None:
    """Elements that still hold the marker: 0-dim, on the device; None for a dtype that is not filled.

    Sync: none.
    """
    if tensor.dtype not in _MARKER:
        return None
    integer, bits = _MARKER[tensor.dtype]
    return (tensor.detach().view(integer) == bits).sum()
