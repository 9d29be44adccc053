"""Megatron's rerun state machine, which compares results and may ask for the step again (from 0.10 on)."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def keep() -> Callable[[], None]:
    """Note the machine's state now; the result puts it back, as often as it is called."""
    machine = _machine()
    if machine is None:
        return lambda: None
    kept = {name: copy.copy(value) for name, value in vars(machine).items()}

    def put_back() -> None:
        vars(machine).clear()
        vars(machine).update({name: copy.copy(value) for name, value in kept.items()})

    return put_back


@contextmanager
def standing_still() -> Iterator[None]:
    """Results are validated by nobody: between two steps the machine would take that for an error of the caller.

    Source: megatron/core/rerun_state_machine.py, validate_result
    """
    machine = _machine()
    if machine is None:
        yield
        return
    before = vars(machine).get("validate_result")
    machine.validate_result = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del machine.validate_result
        if before is not None:
            machine.validate_result = before


def _machine() -> Any:
    module = sys.modules.get("megatron.core.rerun_state_machine")
    return None if module is None else vars(module).get("_GLOBAL_RERUN_STATE_MACHINE")
