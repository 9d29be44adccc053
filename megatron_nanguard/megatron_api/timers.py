"""Megatron's timers: a pass that is run again would count twice, inside another timer that is running."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def keep() -> Callable[[], None]:
    """Note every timer now; the result puts them back and drops those that came since.

    Source: megatron/core/timers.py, Timers and Timer
    """
    holder = sys.modules.get("megatron.training.global_vars")
    timers: Any = None if holder is None else vars(holder).get("_GLOBAL_TIMERS")
    if timers is None:
        return lambda: None
    kept = {name: dict(vars(timer)) for name, timer in timers._timers.items()}

    def put_back() -> None:
        for name in list(timers._timers):
            if name in kept:
                vars(timers._timers[name]).update(kept[name])
            else:
                del timers._timers[name]

    return put_back
