"""Makes the public calls of `torch.cuda` that are not mapped fail with their own name."""

from __future__ import annotations

import functools
import types
from types import ModuleType
from typing import Any

from megatron_nanguard.cpurun.errors import UnmappedCuda
from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes

# Types, exceptions and typing names are left alone, as are sub-modules and the Tensor and Storage classes.
KEPT = frozenset(
    {
        "amp",
        "OutOfMemoryError",
        "AcceleratorError",
        "CudaError",
        "DeferredCudaCallError",
        "Device",
        "cudaStatus",
        "Any",
        "Callable",
        "NewType",
        "Optional",
        "cast",
        "classproperty",
        "lru_cache",
    }
)
SUBMODULES = ("random", "memory")


def refuse_the_rest(changes: ChangedAttributes, torch: ModuleType) -> None:
    """Replace every public callable that has not been changed by one that raises `UnmappedCuda`."""
    for name in dir(torch.cuda):
        value = getattr(torch.cuda, name)
        if _is_call(name, value) and name not in changes.names(torch.cuda):
            changes.put(torch.cuda, name, _refusing(name, value))
    for module_name in SUBMODULES:
        module = getattr(torch.cuda, module_name)
        for name in module.__all__:
            value = getattr(module, name)
            if _is_call(name, value) and name not in changes.names(module):
                changes.put(module, name, _refusing(f"{module_name}.{name}", value))


def _is_call(name: str, value: Any) -> bool:
    if name.startswith("_") or name in KEPT or name.endswith(("Tensor", "Storage")):
        return False
    return callable(value) and not isinstance(value, types.ModuleType)


def _refusing(name: str, original: Any) -> Any:
    if isinstance(original, type):  # a class still, for isinstance and annotations
        return type(original.__name__, (), {"__init__": _refuse(name), "__module__": original.__module__})
    return functools.wraps(original)(_refuse(name))


def _refuse(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise UnmappedCuda.of(name)

    return refuse
