"""Touch functions we do not own: resolve, wrap, undo, shield. Has never heard of NaN."""

from megatron_nanguard.patching.engine import Engine
from megatron_nanguard.patching.point import PatchPoint, PointState, Target, Wrapper
from megatron_nanguard.patching.shield import Shield

__all__ = ["Engine", "PatchPoint", "PointState", "Shield", "Target", "Wrapper"]
