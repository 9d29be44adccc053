"""What optimizers keep that belongs to no parameter: loss scalers and step counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.megatron_api.optimizer_state import inner_optimizers
from megatron_nanguard.megatron_api.optimizers import scalers


def numbers(optimizer: Any) -> dict[str, float]:
    """All of them by name, such as "scaler 0, growth_tracker" or "optimizer 0, group 1, step".

    Source: megatron/core/optimizer/grad_scaler.py; apex and Transformer Engine count steps per group
    Sync: one host read per loss scaler.
    """
    found = {
        f"scaler {number}, {name}": float(value)
        for number, scaler in enumerate(scalers(optimizer))
        for name, value in scaler.state_dict().items()
    }
    return found | {name: float(group["step"]) for name, group in _groups(optimizer) if "step" in group}


def put_numbers_back(optimizer: Any, kept: Mapping[str, float]) -> None:
    """Set what `numbers` gave; a scaler or a count that is not among them stays as it is."""
    for number, scaler in enumerate(scalers(optimizer)):
        present = {f"scaler {number}, {name}": (name, value) for name, value in scaler.state_dict().items()}
        if present and present.keys() <= kept.keys():
            scaler.load_state_dict({name: _like(value, kept[full]) for full, (name, value) in present.items()})
    for name, group in _groups(optimizer):
        if name in kept:
            group["step"] = _like(group.get("step", 0), kept[name])


def _groups(optimizer: Any) -> Iterator[tuple[str, MutableMapping[str, Any]]]:
    for number, inner in inner_optimizers(optimizer):
        for place, group in enumerate(inner.param_groups):
            yield f"optimizer {number}, group {place}, step", group


def _like(present: Any, number: float) -> Any:
    return torch.full_like(present, number) if isinstance(present, Tensor) else type(present)(number)
