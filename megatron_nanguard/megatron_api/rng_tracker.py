"""Megatron's named random states of the device (``CudaRNGStatesTracker``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from torch import Generator, Tensor

from megatron_nanguard.megatron_api.protocols import RngTracker


def states() -> dict[str, Tensor]:
    """Return a copy of each named state; none where the tracker is not in use.

    Source: megatron/core/tensor_parallel/random.py; graph-safe states are generators instead of tensors
    """
    tracker = _tracker()
    if tracker is None:
        return {}
    return {name: s.clone() if isinstance(s, Tensor) else s.get_state() for name, s in tracker.get_states().items()}


def current() -> str | None:
    """Return the name of the tracker's current state; None where it has none."""
    tracker = _tracker()
    return None if tracker is None else vars(tracker).get("_current_state_name")


def put_back(kept: Mapping[str, Tensor], name: str | None) -> None:
    """Restore named states and the current name; does nothing if no state was kept.

    A graph-safe state is a generator to which captured graphs refer: the object stays, its state is set.
    """
    tracker = _tracker()
    if tracker is None or not kept:
        return
    present = tracker.get_states()
    tracker.set_states({each: _set(present.get(each), state) for each, state in kept.items()})
    if name is not None:
        tracker._current_state_name = name


def _set(present: Tensor | Generator | None, state: Tensor) -> Tensor | Generator:
    if present is None or isinstance(present, Tensor):
        return state.clone()
    present.set_state(state)
    return present


def _tracker() -> RngTracker | None:
    return getattr(sys.modules.get("megatron.core.tensor_parallel.random"), "_CUDA_RNG_STATE_TRACKER", None)
