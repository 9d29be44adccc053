"""Ticks of a logarithmic scale."""

from __future__ import annotations

import math

SUBDIVIDED_DECADES = 2
MOST_DECADES = 6


def log_ticks(lowest: float, highest: float) -> list[float]:
    """Powers of ten, with 2 and 5 of each where there are few; both ends where none of these lie between them.

    Args:
        lowest: smallest value that is drawn, above zero.
        highest: largest.
    """
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    digits = (1, 2, 5) if last - first <= SUBDIVIDED_DECADES else (1,)
    step = 1 + (last - first) // MOST_DECADES
    ticks = [digit * 10.0**power for power in range(first, last + 1, step) for digit in digits]
    inside = [tick for tick in ticks if lowest <= tick <= highest]
    return inside if len(inside) > 1 else sorted({lowest, highest})


def tick_name(tick: float) -> str:
    """Four digits, which an axis has room for."""
    return f"{tick:.4g}"
