"""Flags: whether a tensor held NaN or Inf. They stay on the device, and the host reads all of them at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

import torch
from torch import Tensor

from megatron_nanguard.records.trace import Pattern

NEGATIVE_INF: Final = 1
POSITIVE_INF: Final = 2
NAN: Final = 4

_PAIRS_PER_BLOCK: Final = 1024
_DIRECT: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Slot(NamedTuple):
    """Where the flag of one tensor is kept."""

    dtype: torch.dtype
    device: torch.device
    number: int


class _Pairs:
    """The smallest and largest element of each flagged tensor of one dtype on one device."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.used = 0
        self.bits: list[int] = []
        self.ends: Tensor
        self._blocks: list[Tensor] = []
        self._slots: list[tuple[Tensor, Tensor]] = []

    def next(self) -> tuple[Tensor, Tensor]:
        if self.used == len(self._slots):
            block = torch.zeros(_PAIRS_PER_BLOCK, 2, dtype=self.dtype, device=self.device)
            self._blocks.append(block)
            # Unbind each block once: making two 0-dim views per operator would cost more than the flag itself.
            self._slots.extend(zip(block[:, 0].unbind(), block[:, 1].unbind(), strict=True))
        self.used += 1
        return self._slots[self.used - 1]

    def now(self, number: int) -> int:
        low, high = map(float, self._slots[number])
        is_nan = math.isnan(low) or math.isnan(high)
        return is_nan * NAN + (low == -math.inf) * NEGATIVE_INF + (high == math.inf) * POSITIVE_INF

    def read(self) -> None:
        self.ends = pairs = torch.cat(self._blocks)[: self.used].double().cpu()
        low, high = pairs[:, 0], pairs[:, 1]
        bits = pairs.isnan().any(1) * NAN + (low == -math.inf) * NEGATIVE_INF + (high == math.inf) * POSITIVE_INF
        self.bits = bits.tolist()


class NonfiniteFlags:
    """One flag for each tensor that was looked at."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[torch.dtype, torch.device], _Pairs] = {}

    def put(self, tensor: Tensor) -> Slot | None:
        """Flag what the tensor holds now.

        Returns:
            Where its flag is; None for a tensor that can hold neither NaN nor Inf.
        Sync: none.
        """
        if not can_be_bad(tensor):
            return None
        if tensor.is_complex():  # Of a conjugate, a view with a mark on it, torch gives no view as real numbers.
            tensor = torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)
        values = tensor.detach() if tensor.dtype in _DIRECT else tensor.float()  # fp8 has no aminmax kernel
        key = (values.dtype, values.device)
        pairs = self._pairs.get(key)
        if pairs is None:
            pairs = self._pairs[key] = _Pairs(*key)
        number = pairs.used
        # A NaN shows in both ends, each infinity in one of them; this takes one kernel and no temporary.
        torch.aminmax(values, out=pairs.next())
        return Slot(*key, number)

    def read(self) -> None:
        """Fetch all flags to the host.

        Sync: one host read per dtype and device.
        """
        for pairs in self._pairs.values():
            pairs.read()

    def now(self, slot: Slot | None) -> int:
        """Return one flag before `read`: a union of NAN, NEGATIVE_INF and POSITIVE_INF, 0 if all is finite.

        Sync: two host reads.
        """
        return 0 if slot is None else self._pairs[slot.dtype, slot.device].now(slot.number)

    def bits(self, slot: Slot | None) -> int:
        """Return one flag after `read`: a union of NAN, NEGATIVE_INF and POSITIVE_INF, 0 if all is finite."""
        return 0 if slot is None else self._pairs[slot.dtype, slot.device].bits[slot.number]

    def ends(self, slot: Slot) -> tuple[float, float]:
        """Return the smallest and largest element after `read`; both are NaN if any element is."""
        low, high = self._pairs[slot.dtype, slot.device].ends[slot.number].tolist()
        return low, high


def can_be_bad(tensor: Tensor) -> bool:
    """Whether the tensor has elements that can be NaN or Inf, in a layout that `aminmax` can read."""
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout == torch.strided
        and tensor.numel() > 0
        and tensor.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def union(flags: Iterable[int]) -> int:
    """Return one flag for several tensors together."""
    return reduce(or_, flags, 0)


def pattern(bits: int) -> Pattern:
    """The word for a flag; "nan" also if there is an Inf beside the NaN."""
    if bits & NAN:
        return "nan"
    return "inf" if bits else "finite"
