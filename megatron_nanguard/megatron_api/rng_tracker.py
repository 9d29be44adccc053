"""Megatron's named random states of the device."""

from __future__ import annotations

import sys
from collections.abc import Mapping
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


def current() -> str | None:
    """The name that the tracker calls current; None where it calls none so."""
    tracker = _tracker()
    return None if tracker is None else vars(tracker).get("_current_state_name")


def put_back(kept: Mapping[str, Tensor], name: str | None) -> None:
    """Set the named states to earlier ones, and the current name; nothing where there were none.

    A graph-safe state is a generator that captured graphs know: it stays the same object and is set.
    """
    tracker = _tracker()
    if tracker is None or not kept:
        return
    present = tracker.get_states()
    tracker.set_states({each: _set(present.get(each), state) for each, state in kept.items()})
    if name is not None:
        tracker._current_state_name = name


def _set(present: Any, state: Tensor) -> Any:
    if present is None or isinstance(present, Tensor):
        return state.clone()
    present.set_state(state)
    return present


def _tracker() -> Any:
    module = sys.modules.get("megatron.core.tensor_parallel.random")
    return None if module is None else vars(module).get("_CUDA_RNG_STATE_TRACKER")
