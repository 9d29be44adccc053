"""What a pass of the schedule changes outside of model and optimizer: sums for the log, timers, rerun state machine.

Each `keep_...` notes the state now and returns a function that puts it back, as often as it is called.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from operator import itemgetter
from typing import Any

from torch import Tensor

from megatron_nanguard.megatron_api.protocols import RerunStateMachine, Timers
from megatron_nanguard.tensor_names import named_tensors

ACCUMULATORS = (
    ("megatron.core.transformer.moe.moe_logging", "_MOE_METRICS_TRACKER._metrics"),
    ("megatron.core.transformer.moe.moe_utils", "_MOE_LAYER_WISE_LOGGING_TRACKER"),
    ("megatron.core.parallel_state", "_MOE_LAYER_WISE_LOGGING_TRACKER"),
    ("megatron.core.transformer.multi_token_prediction", "MTPLossLoggingHelper.tracker"),
    ("megatron.training.training", "_seqlen_stats_in_iteration"),
    ("megatron.training.training", "_seqlen_stats_active"),
)
"""Module and path of what a forward pass adds up for the log: MoE losses, MTP losses, sequence lengths.

The first three are the same thing from 0.18 on, from 0.13 on, and before.
"""


def _accumulators() -> Iterator[tuple[Any, str]]:
    """Yield those that exist now, as what holds it and its attribute there; some are made by the first forward pass."""
    for module, path in ACCUMULATORS:
        owner: Any = sys.modules.get(module)
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part, None)
        if hasattr(owner, name):
            yield owner, name


def keep_accumulators() -> Callable[[], None]:
    """Copy the sums for the log; putting them back empties those that did not exist yet."""
    kept = [(owner, name, _copied(getattr(owner, name))) for owner, name in _accumulators()]

    def put_back() -> None:
        known = {(id(owner), name) for owner, name, _ in kept}
        for owner, name in _accumulators():
            if (id(owner), name) not in known:
                setattr(owner, name, type(getattr(owner, name))())
        for owner, name, value in kept:
            setattr(owner, name, _copied(value))

    return put_back


def accumulated_tensors() -> Iterator[Tensor]:
    """Yield every tensor of the sums for the log, in an order that is the same in every pass."""
    for owner, accumulator in _accumulators():
        named = named_tensors(getattr(owner, accumulator), _dataclass_fields)  # those that `_copied` copies
        yield from (tensor for _, tensor in sorted(named, key=itemgetter(0)))


def keep_timers() -> Callable[[], None]:
    """Note every timer of Megatron; putting them back drops those that came since.

    A pass that is run again would count twice, inside another timer that is running.

    Source: megatron/core/timers.py, Timers and Timer
    """
    timers: Timers | None = getattr(sys.modules.get("megatron.training.global_vars"), "_GLOBAL_TIMERS", None)
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


def keep_rerun_machine() -> Callable[[], None]:
    """Copy the state of Megatron's rerun state machine, and return a function that puts it back.

    Megatron before 0.10 has no such machine; the function does nothing then.
    """
    machine = _rerun_machine()
    if machine is None:
        return lambda: None
    kept = {name: copy.copy(value) for name, value in vars(machine).items()}

    def put_back() -> None:
        vars(machine).clear()
        vars(machine).update({name: copy.copy(value) for name, value in kept.items()})

    return put_back


@contextmanager
def rerun_machine_off() -> Iterator[None]:
    """Let results pass unvalidated: a call between two steps looks to the machine like an error of the caller.

    Source: megatron/core/rerun_state_machine.py, validate_result
    """
    machine = _rerun_machine()
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


def _copied(value: Any) -> Any:
    """Copy a value with its tensors; process groups and the like are shared."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if not is_dataclass(value):
        return value
    twin = copy.copy(value)
    for field in fields(value):
        setattr(twin, field.name, _copied(getattr(value, field.name)))
    return twin


def _dataclass_fields(value: object) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else {}


def _rerun_machine() -> RerunStateMachine | None:
    module = sys.modules.get("megatron.core.rerun_state_machine")
    return getattr(module, "_GLOBAL_RERUN_STATE_MACHINE", None)
