"""The integers that a rank votes with: computed on the device, read once after the vote."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from megatron_nanguard.megatron_api.optimizers import ScalerTrackers

FP32_MAX = torch.finfo(torch.float32).max


class Flag(IntEnum):
    """Index of each flag in the vote."""

    LOCAL = 0
    """A gradient norm before the reduction is not finite, or large enough to overflow the norm over all ranks."""
    REDUCED = 1
    """The same for the gradients that the optimizer is about to consume."""
    LOSS = 2
    """The loss of a micro-batch is not finite."""
    OWN_FAULT = 3
    """The guard itself failed on this rank."""
    DEAD_STEP = 4
    """The gradient norm of the step before was not finite; it became known only after that step's vote."""
    DYNAMIC_SCALE = 5
    """A loss scaler of this rank adjusts itself, so that an overflow is normal. No alarm by itself."""
    MINIMAL_SCALE = 6
    """That scaler is at its minimum. No alarm by itself."""
    RAISED_SCALE = 7
    """That scaler went up, and no step was applied at the new scale yet. No alarm by itself."""


@dataclass
class FlagInputs:
    """The inputs of the flags, on the device if they were computed there.

    Attributes:
        before: norms before the reduction, one tensor per bucket.
        after: norms of the pieces that will be consumed.
        loss: bool [], some loss is not finite.
        last_norms: gradient norms of the step before, as Megatron returned them: numbers, or tensors on the device.
    """

    before: Sequence[Tensor] = ()
    after: Tensor | None = None
    loss: Tensor | None = None
    last_norms: Sequence[float | Tensor] = ()
    dynamic_scale: bool = False
    minimal_scale: Tensor | None = None
    raised_scale: bool = False


def flag_tensor(seen: FlagInputs, num_ranks: int, device: torch.device) -> Tensor:
    """Return int32 [len(Flag)] on the device.

    Sync: none.
    """
    limit = FP32_MAX / num_ranks
    flags: list[bool | Tensor] = [False] * len(Flag)
    if seen.before:
        flags[Flag.LOCAL] = _too_large(torch.cat(list(seen.before)), limit)
    if seen.after is not None:
        flags[Flag.REDUCED] = _too_large(seen.after, limit)
    if seen.loss is not None:
        flags[Flag.LOSS] = seen.loss
    flags[Flag.DEAD_STEP] = _any_nonfinite(seen.last_norms)
    flags[Flag.DYNAMIC_SCALE] = seen.dynamic_scale
    flags[Flag.RAISED_SCALE] = seen.raised_scale
    if seen.minimal_scale is not None:
        flags[Flag.MINIMAL_SCALE] = seen.minimal_scale
    return torch.stack([_on(flag, device) for flag in flags])


def fault_flags(device: torch.device) -> Tensor:
    """Return the flags of a rank on which the guard itself failed."""
    flags = torch.zeros(len(Flag), dtype=torch.int32, device=device)
    flags[Flag.OWN_FAULT] = 1
    return flags


class RaisedScale:
    """Whether a dynamic loss scale went up and no step was applied at it yet: an overflow is then to be expected.

    Follows the scalers of one optimizer from vote to vote.
    """

    def __init__(self) -> None:
        self._raised: list[bool] = []

    def look(self, scalers: Sequence[ScalerTrackers]) -> bool:
        """Say whether one of them is at a scale just raised. Called once per step, before the decision."""
        # A trainer may have replaced its scalers; nothing is known of the new ones.
        before = self._raised if len(self._raised) == len(scalers) else [False] * len(scalers)
        self._raised = [_is_raised(scaler, was) for scaler, was in zip(scalers, before, strict=True)]
        return any(self._raised)


def _too_large(norms: Tensor, limit: float) -> Tensor:
    """Return True for NaN and Inf too: the comparison with the limit is then false."""
    return ~(norms.square().sum() <= limit)


def _any_nonfinite(norms: Sequence[float | Tensor]) -> bool | Tensor:
    if any(not isinstance(norm, Tensor) and not math.isfinite(norm) for norm in norms):
        return True
    on_device = [norm.reshape(()) for norm in norms if isinstance(norm, Tensor)]
    return ~torch.isfinite(torch.stack(on_device)).all() if on_device else False


def _on(flag: bool | Tensor, device: torch.device) -> Tensor:
    if isinstance(flag, Tensor):
        return flag.reshape(()).to(device=device, dtype=torch.int32)
    return torch.full((), int(flag), dtype=torch.int32, device=device)


def _is_raised(scaler: ScalerTrackers, was: bool) -> bool:
    if scaler.growth > 0 or scaler.hysteresis_left <= 0:
        return False
    # A hysteresis used in part means an overflow since; the scale is then the one from before it.
    return was or scaler.hysteresis_left == scaler.hysteresis
