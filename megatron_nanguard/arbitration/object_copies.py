"""Copy the arguments of a call that no file holds, such as quantizers with their state, so that it can be made again.

A copy has tensors, containers and attributes of its own. A run on copies leaves the state of the training run as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import Module, Parameter

from megatron_nanguard.tensor_names import is_wrapper

_DEEPEST: Final = 8
_BY_REFERENCE: Final = (
    *(type, str, bytes, int, float, complex, torch.dtype, torch.device, ProcessGroup),
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType, partial),
)
PLAIN: Final = (bool, int, float, str)
"""Types of attributes of a parameter that a copy of it keeps."""


def copied(value: object, memo: dict[int, Any] | None = None, depth: int = 0) -> Any:
    """Copy a value with all tensors and objects inside; groups, functions and what cannot be copied stay themselves.

    Args:
        value: any argument.
        memo: copies by the id of the original, so that what is one object stays one.
        depth: how deep in the argument this value is.
    Sync: none.
    """
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    if value is None or isinstance(value, _BY_REFERENCE) or depth > _DEEPEST:
        return value
    made: Any
    if isinstance(value, Tensor):
        made = _copied_tensor(value)
    elif isinstance(value, torch.Generator):
        made = value.clone_state()
    elif isinstance(value, tuple | list | set | frozenset):
        inside = [copied(one, memo, depth + 1) for one in value]
        is_named = isinstance(value, tuple) and hasattr(value, "_fields")
        made = type(value)(*inside) if is_named else type(value)(inside)
    elif isinstance(value, Module) or _can_be_copied(value):
        made = _copied_object(value, memo, depth)
    else:
        made = value
    memo[id(value)] = made
    return made


def plain_attributes(parameter: Tensor) -> Iterator[tuple[str, object]]:
    """Yield the attributes of a parameter that are plain values.

    `grad_added_to_main_grad` is false again: a backward sets it when it adds, and other micro-batches have done so.
    """
    for name, value in vars(parameter).items():
        if type(value) in PLAIN:
            yield name, value and name != "grad_added_to_main_grad"


def _copied_tensor(tensor: Tensor) -> Tensor:
    made = tensor.detach().clone()
    if not isinstance(tensor, Parameter):
        return made.requires_grad_(tensor.requires_grad)
    parameter = made if is_wrapper(made) else Parameter(made, requires_grad=tensor.requires_grad)
    for name, value in plain_attributes(tensor):
        setattr(parameter, name, value)
    main_grad = getattr(tensor, "main_grad", None)
    if isinstance(main_grad, Tensor):
        parameter.main_grad = torch.zeros_like(main_grad)  # type: ignore[attr-defined]
    return parameter


def _can_be_copied(value: object) -> bool:
    """Whether it is an object of Python's with attributes, and not torch's own, such as a stream."""
    if type(value).__module__.partition(".")[0] == "torch":
        return False
    return isinstance(value, dict) or hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


def _copied_object(value: Any, memo: dict[int, Any], depth: int) -> Any:
    """Copy an object, then everything in its dictionary and slots; the submodules of a module stay themselves."""
    try:
        made = copy.copy(value)
    except Exception:  # an object of the user's may refuse in any way
        return value
    if made is value:
        return value
    memo[id(value)] = made
    if isinstance(value, dict):
        for key, one in value.items():
            made[key] = copied(one, memo, depth + 1)
    for name, one in _attributes(value):
        if name != "_modules":
            object.__setattr__(made, name, copied(one, memo, depth + 1))
    return made


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    yield from list(getattr(value, "__dict__", {}).items())
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
