"""What a forward pass adds up outside of the model, for the log: MoE losses, MTP losses, sequence lengths."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from torch import Tensor

from megatron_nanguard.tensor_names import named_tensors

PLACES = (
    ("megatron.core.transformer.moe.moe_logging", "_MOE_METRICS_TRACKER._metrics"),
    ("megatron.core.transformer.moe.moe_utils", "_MOE_LAYER_WISE_LOGGING_TRACKER"),
    ("megatron.core.parallel_state", "_MOE_LAYER_WISE_LOGGING_TRACKER"),
    ("megatron.core.transformer.multi_token_prediction", "MTPLossLoggingHelper.tracker"),
    ("megatron.training.training", "_seqlen_stats_in_iteration"),
    ("megatron.training.training", "_seqlen_stats_active"),
)
"""Module and path of each; the first three are the same thing from 0.18 on, from 0.13 on, and before."""


class Accumulator(NamedTuple):
    """One of them.

    Attributes:
        owner: module, class or object that holds it.
        name: its attribute there.
    """

    owner: Any
    name: str

    @property
    def value(self) -> Any:
        """What has been added up so far."""
        return getattr(self.owner, self.name)


def accumulators() -> list[Accumulator]:
    """Those that exist now: some are made by the first forward pass."""
    return [one for module, path in PLACES for one in _found(sys.modules.get(module), path)]


def keep() -> Callable[[], None]:
    """Copy them now; the result puts them back, as often as it is called. What did not exist yet is emptied."""
    kept = [(one, copied(one.value)) for one in accumulators()]

    def put_back() -> None:
        known = {(id(one.owner), one.name) for one, _ in kept}
        for one in accumulators():
            if (id(one.owner), one.name) not in known:
                setattr(one.owner, one.name, type(one.value)())
        for one, value in kept:
            setattr(one.owner, one.name, copied(value))

    return put_back


def copied(value: Any) -> Any:
    """A copy whose tensors are its own; process groups and the like are shared."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if not is_dataclass(value):
        return value
    twin = copy.copy(value)
    for field in fields(value):
        setattr(twin, field.name, copied(getattr(value, field.name)))
    return twin


def tensors(value: Any) -> list[Tensor]:
    """The tensors of a value that `copied` would copy, in an order that does not depend on who was first to add up."""
    return [tensor for _, tensor in sorted(named_tensors(value, _dataclass_fields), key=itemgetter(0))]


def _dataclass_fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else {}


def _found(owner: Any, path: str) -> Iterator[Accumulator]:
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part, None)
    if owner is not None and hasattr(owner, name):
        yield Accumulator(owner, name)
