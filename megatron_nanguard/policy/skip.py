"""Skip a step the way Megatron itself does: ``prepare_grads`` answers True."""

from __future__ import annotations

from collections.abc import Callable

from megatron_nanguard.megatron_api.optimizers import ScalerStates
from megatron_nanguard.megatron_api.protocols import MegatronOptimizer


def veto(prepare: Callable[[], bool], optimizer: MegatronOptimizer) -> bool:
    """Run the host's own ``prepare_grads``, then answer True: no parameter, moment or learning rate moves.

    Where a loss scaler found nothing on this rank, it is updated as if it had, so that all replicas keep one scale.
    """
    before = ScalerStates(optimizer)
    if not prepare():
        before.back_off()
    return True
