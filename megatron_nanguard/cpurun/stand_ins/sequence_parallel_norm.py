"""Sequence parallelism with torch's own norms, which Megatron allows with fused norms only."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes, Function


def allow_sequence_parallel(changes: ChangedAttributes, torch_norm: ModuleType) -> None:
    """Build the norm as without sequence parallelism, and mark its parameters.

    The norm computes the same; the mark makes `finalize_model_grads` sum the gradients over the TP group.

    Source: megatron/core/transformer/torch_norm.py, WrappedTorchNorm
    """
    if hasattr(torch_norm, "WrappedTorchNorm"):
        changes.wrap(torch_norm.WrappedTorchNorm, "__new__", _building)


def _building(original: Function) -> Function:
    def new(cls: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        if not config.sequence_parallel:
            return original(cls, config, *args, **kwargs)
        plain = copy.copy(config)
        plain.sequence_parallel = False
        norm = original(cls, plain, *args, **kwargs)
        for parameter in norm.parameters():
            parameter.sequence_parallel = True
        return norm

    return new
