"""Wrap functions of another package and undo it: resolve, wrap, restore, shield. Knows nothing of NaN."""

from megatron_nanguard.patching.engine import Engine
from megatron_nanguard.patching.point import (
    KNOWN,
    Args,
    Kwargs,
    PatchPoint,
    PointState,
    Target,
    Wrapped,
    Wrapper,
    line_of,
)
from megatron_nanguard.patching.shield import Shield

__all__ = [
    "KNOWN",
    "Args",
    "Engine",
    "Kwargs",
    "PatchPoint",
    "PointState",
    "Shield",
    "Target",
    "Wrapped",
    "Wrapper",
    "line_of",
]
