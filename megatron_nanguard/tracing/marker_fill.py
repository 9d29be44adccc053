"""Marker fill: write a NaN of known bits into fresh memory, so that memory read before it is written can be recognized.

Compare bits before any arithmetic: arithmetic is free to return another NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_nanguard.tracing.recording.operators import is_empty

_MARKER: Final[Mapping[torch.dtype, tuple[torch.dtype, int]]] = {
    torch.float64: (torch.int64, 0x7FF4DEADBEEF0001),
    torch.float32: (torch.int32, 0x7FA0DEAD),
    torch.bfloat16: (torch.int16, 0x7F95),
    torch.float16: (torch.int16, 0x7CD5),
}
"""Signalling NaN. Arithmetic makes it a quiet one, or another: what holds the marker was not computed."""


class MarkerFill(TorchDispatchMode):
    """Fill the memory that every ``empty`` returns, and change nothing else.

    A step that reads memory before it is written becomes NaN; any other step keeps its bits.

    Sync: none.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep compiled functions compiled: run eagerly they would give other bits."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_empty(func) and isinstance(result, Tensor) and result.is_contiguous():
            fill_with_marker(result)
        return result


def fill_with_marker(tensor: Tensor) -> None:
    """Write the marker into every element; a tensor of a dtype without a marker keeps its values."""
    if tensor.dtype in _MARKER and tensor.numel():
        integer, bits = _MARKER[tensor.dtype]
        tensor.detach().view(integer).fill_(bits)


def count_markers(tensor: Tensor) -> Tensor | None:
    """Count the elements that still hold the marker.

    Returns:
        int64 [] on the tensor's device; None for a dtype without a marker.
    Sync: none.
    """
    if tensor.dtype not in _MARKER:
        return None
    integer, bits = _MARKER[tensor.dtype]
    return (tensor.detach().view(integer) == bits).sum()


def holds_only_markers(tensor: Tensor) -> bool:
    """Whether nothing has been written into any element since the fill.

    Sync: one host read.
    """
    num_markers = count_markers(tensor)
    return num_markers is not None and 0 < tensor.numel() == int(num_markers)
