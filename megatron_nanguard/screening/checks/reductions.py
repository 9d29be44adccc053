"""Sums, sums of squares and maxima over rows of whole numbers, which are exact in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from megatron_nanguard.records.machine.screening import DeviceCheck
from megatron_nanguard.screening.checks.comparing import exact
from megatron_nanguard.screening.checks.device_under_test import DeviceUnderTest
from megatron_nanguard.screening.known_data import integers

ROWS, COLUMNS = 256, 4096
LARGEST = 16
"""16 * 16 * 4096 = 2**20: a float32 is exact for whole numbers up to 2**24."""

KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(-1),
    "sum of squares": lambda rows: rows.square().sum(-1),
    "maximum": lambda rows: rows.amax(-1),
}


def check(tested: DeviceUnderTest) -> Iterator[DeviceCheck]:
    """Each kind in float32."""
    rows = integers((ROWS, COLUMNS), LARGEST, "reductions")
    for kind, reduce in KINDS.items():
        outputs, seconds = tested.repeat(reduce, rows)
        yield exact(f"{kind} over rows, float32", outputs, reduce(rows.double()), seconds)
