"""Sequence parallelism with torch's own norms, which Megatron refuses (only the fused ones are said to have it)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes


def allow_sequence_parallel(changes: ChangedAttributes, torch_norm: Any) -> None:
    """Build the norm as if without, and mark its parameters.

    The sums are the same; the mark makes `finalize_model_grads` add the gradients up over the TP group.

    Source: megatron/core/transformer/torch_norm.py, WrappedTorchNorm
    """
    if hasattr(torch_norm, "WrappedTorchNorm"):
        changes.wrap(torch_norm.WrappedTorchNorm, "__new__", _building)


def _building(original: Callable[..., Any]) -> Callable[..., Any]:
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
