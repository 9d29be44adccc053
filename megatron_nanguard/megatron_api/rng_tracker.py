"""Megatron's named random states of the device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor


def states() -> dict[str, Tensor]:
    """Each named state, copied; empty where the tracker is not in use.

    Source: megatron/core/tensor_parallel/random.py; graph-safe states are generators instead of tensors
    """
    tracker = _tracker()
    if tracker is None:
        return {}
    return {name: s.clone() if isinstance(s, Tensor) else s.get_state() for name, s in tracker.get_states().items()}


def keep() -> Callable[[], None]:
    """Copy the named states now; the result puts them back, as often as it is called.

    A graph-safe state is a generator that captured graphs know: it stays the same object and is set.
    """
    tracker = _tracker()
    if tracker is None or not tracker.get_states():
        return lambda: None
    kept = states()
    current = vars(tracker).get("_current_state_name")

    def put_back() -> None:
        tracker.set_states({name: _set(tracker.get_states().get(name), state) for name, state in kept.items()})
        if current is not None:
            tracker._current_state_name = current

    return put_back


def _set(present: Any, state: Tensor) -> Any:
    if present is None or isinstance(present, Tensor):
        return state.clone()
    present.set_state(state)
    return present


def _tracker() -> Any:
    module = sys.modules.get("megatron.core.tensor_parallel.random")
    return None if module is None else vars(module).get("_CUDA_RNG_STATE_TRACKER")
