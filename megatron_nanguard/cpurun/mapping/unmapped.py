"""Makes the public calls of `torch.cuda` that are not mapped fail with their own name."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from megatron_nanguard.cpurun.errors import UnmappedCuda
from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes

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
    """Whether it is a call of torch.cuda itself: no exception, type of a tensor, or name imported from elsewhere."""
    is_kept = name.startswith("_") or name.endswith(("Tensor", "Storage")) or name == "cudaStatus"
    if is_kept or not callable(value) or (isinstance(value, type) and issubclass(value, BaseException)):
        return False
    return str(value.__module__).startswith("torch.cuda")


def _refusing(name: str, original: Any) -> Any:
    if isinstance(original, type):  # a class still, for isinstance and annotations
        return type(original.__name__, (), {"__init__": _refuse(name), "__module__": original.__module__})
    return functools.wraps(original)(_refuse(name))


def _refuse(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise UnmappedCuda(
            f"torch.cuda.{name} is not mapped to the CPU: please report torch.cuda.{name} with this traceback "
            "to the megatron_nanguard issue tracker"
        )

    return refuse
