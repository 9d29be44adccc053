"""`torch.compile` leaves the function as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes


def map_compiling(changes: ChangedAttributes, torch: Any) -> None:
    """Megatron's `jit_fuser` and the MoE router compile: inductor would start a C++ compiler in every rank."""
    changes.wrap(torch, "compile", lambda original: _compile)


def _compile(model: Any = None, **kwargs: Any) -> Any:
    return _unchanged if model is None else model


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
