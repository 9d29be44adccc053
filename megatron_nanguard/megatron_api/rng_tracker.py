"""Megatron's named random states of the device."""

from __future__ import annotations

import sys

from torch import Tensor


def states() -> dict[str, Tensor]:
    """Each named state, copied; empty where the tracker is not in use.

    Source: megatron/core/tensor_parallel/random.py; graph-safe states are generators instead of tensors
    """
    module = sys.modules.get("megatron.core.tensor_parallel.random")
    tracker = None if module is None else vars(module).get("_CUDA_RNG_STATE_TRACKER")
    if tracker is None:
        return {}
    return {name: s.clone() if isinstance(s, Tensor) else s.get_state() for name, s in tracker.get_states().items()}
