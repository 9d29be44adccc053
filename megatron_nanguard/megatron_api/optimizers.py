"""Megatron's optimizers: leaves, stub ranks, loss scalers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from megatron_nanguard.megatron_api.protocols import (
    DynamicGradScaler,
    GradScaler,
    LeafOptimizer,
    MegatronOptimizer,
    ModelChunk,
)


def leaves(optimizer: MegatronOptimizer | None) -> list[LeafOptimizer]:
    """Return the innermost optimizers, in order. ``ChainedOptimizer`` may be nested; MiMo keeps its own in a list.

    Source: megatron/core/optimizer/optimizer.py, megatron/core/models/mimo/optimizer.py
    """
    if optimizer is None:
        return []
    children = getattr(optimizer, "chained_optimizers", getattr(optimizer, "_active_optimizers", None))
    if children is None:
        return [cast("LeafOptimizer", optimizer)]
    return [leaf for child in children for leaf in leaves(child)]


def is_stub(optimizer: MegatronOptimizer) -> bool:
    """Say whether this rank has nothing to train, so that core 0.11 returns from ``step`` at once."""
    return bool(getattr(optimizer, "is_stub_optimizer", False))


def model_chunks(optimizer: MegatronOptimizer) -> list[ModelChunk]:
    """Return the chunks that an optimizer was built for, as far as it keeps them (from core 0.9 on)."""
    chunks = list(getattr(optimizer, "model_chunks", ()))
    for leaf in leaves(optimizer) if not chunks else ():
        chunks += [c for c in getattr(leaf, "model_chunks", ()) if c not in chunks]
    return chunks


def scalers(optimizer: MegatronOptimizer | None) -> list[GradScaler]:
    """Return the loss scalers of the leaves, each once; none for fp32 and for bf16 without a scale."""
    found = {id(s): s for s in (getattr(leaf, "grad_scaler", None) for leaf in leaves(optimizer)) if s is not None}
    return list(found.values())


def dynamic_scalers(optimizer: MegatronOptimizer) -> list[DynamicGradScaler]:
    """Return the scalers that adjust themselves, for which an overflow is normal."""
    return [cast("DynamicGradScaler", scaler) for scaler in scalers(optimizer) if hasattr(scaler, "min_scale")]


def is_dynamic(optimizer: MegatronOptimizer) -> bool:
    """Say whether a scaler of this optimizer adjusts itself."""
    return bool(dynamic_scalers(optimizer))


def scale_is_minimal(optimizer: MegatronOptimizer) -> Tensor | None:
    """Return bool [1] on the scaler's device: a dynamic scale is at its minimum. None without such a scaler.

    Sync: none.
    """
    return next((scaler.scale <= scaler.min_scale for scaler in dynamic_scalers(optimizer)), None)


def loss_scale(optimizer: MegatronOptimizer) -> float | None:
    """Return the loss scale; None without a scaler.

    Sync: one host read.
    """
    return next((float(scaler.scale) for scaler in scalers(optimizer)), None)


@dataclass(frozen=True)
class ScalerTrackers:
    """What a dynamic loss scaler counts.

    Attributes:
        growth: steps applied since the scale last went up, or since an overflow.
        hysteresis_left: overflows until the scale goes down; 0 or less when it went down already.
        hysteresis: what ``hysteresis_left`` begins with whenever the scale goes up.
    """

    growth: int
    hysteresis_left: int
    hysteresis: int


def scaler_trackers(optimizer: MegatronOptimizer) -> list[ScalerTrackers]:
    """Return the counters of each dynamic scaler that has those of Megatron's; a trainer's own may have others.

    Source: megatron/core/optimizer/grad_scaler.py, DynamicGradScaler.update
    """
    found = []
    for scaler in dynamic_scalers(optimizer):
        state = scaler.state_dict()
        if hasattr(scaler, "hysteresis") and state.keys() >= {"growth_tracker", "hysteresis_tracker"}:
            found.append(ScalerTrackers(state["growth_tracker"], state["hysteresis_tracker"], scaler.hysteresis))
    return found


def scale_window(optimizer: MegatronOptimizer) -> int:
    """``--loss-scale-window``: good steps after which a dynamic scale goes up; 0 without one."""
    return max((scaler.growth_interval for scaler in dynamic_scalers(optimizer)), default=0)


class ScalerStates:
    """The state of the scalers before ``prepare_grads`` updated them.

    Source: megatron/core/optimizer/grad_scaler.py, which rebinds the scale and never writes into it
    """

    def __init__(self, optimizer: MegatronOptimizer) -> None:
        self._kept = [(scaler, scaler.state_dict()) for scaler in scalers(optimizer)]

    def back_off(self) -> None:
        """Restore the scalers and update them as after an overflow, which is what Megatron does when it skips a step.

        Needed if ``prepare_grads`` found no overflow on this rank: the scales of the replicas would differ otherwise.
        """
        for scaler, state in self._kept:
            scaler.load_state_dict(state)
            scaler.update(True)


def clip_threshold(optimizer: MegatronOptimizer | None) -> float:
    """``--clip-grad``; 0 when gradients are not clipped."""
    return float(getattr(getattr(optimizer, "config", None), "clip_grad", 0.0) or 0.0)
