"""Find the tensors that a call can reach through its arguments: in containers, in objects, and inside other tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import Module

_DEEPEST: Final = 6
_MOST_TENSORS: Final = 128
_MOST_VALUES: Final = 2_048
"""A list of token ids has a million plain numbers; arguments that hold tensors are short."""
_PLAIN: Final = (str, bytes, int, float, complex, type, torch.dtype, torch.device, torch.Generator)
_OF_OTHERS: Final = ("main_grad", "grad")
"""Attributes of a tensor that are not part of its value."""

NamedValue = tuple[str, Tensor]


def tensors_within(value: object, name: str = "") -> Iterator[NamedValue]:
    """Yield name and tensor of at most 128 tensors in a value.

    Of a tensor that wraps others, such as a quantized one, it yields the inner tensors: they have the memory. It goes
    into containers and into the attributes of objects, but not into modules or callables: these belong to the model,
    and a call does not take all of the model as its argument.

    Args:
        value: a tensor, a container, or any object.
        name: of the value; names inside of it are like "quantizer.scale" or "tensors.0".
    """
    return islice(_within(value, name, 0, iter(range(_MOST_VALUES)), set()), _MOST_TENSORS)


def _within(value: object, name: str, depth: int, left: Iterator[int], seen: set[int]) -> Iterator[NamedValue]:
    if isinstance(value, Tensor):
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            yield from _within(torch._C._functorch.get_unwrapped(value), name, depth + 1, left, seen)
        elif type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            inner: dict[object, object] = {key: one for key, one in vars(value).items() if key not in _OF_OTHERS}
            yield from _inside(inner, name, depth, left, seen)
        else:
            yield name, value
        return
    if value is None or isinstance(value, _PLAIN) or depth > _DEEPEST or next(left, None) is None:
        return
    if isinstance(value, dict | list | tuple):
        inside = value if isinstance(value, dict) else dict(enumerate(value))
    elif isinstance(value, Module | FunctionCtx) or callable(value) or not hasattr(value, "__dict__"):
        return
    else:
        inside = vars(value)
    yield from _inside(inside, name, depth, left, seen)


def _inside(
    values: Mapping[object, object], name: str, depth: int, left: Iterator[int], seen: set[int]
) -> Iterator[NamedValue]:
    if id(values) in seen:
        return
    seen.add(id(values))
    for key, one in list(values.items()):
        yield from _within(one, f"{name}.{key}" if name else str(key), depth + 1, left, seen)
