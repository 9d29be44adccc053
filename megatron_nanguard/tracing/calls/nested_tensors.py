"""Find the tensors that a call can reach through its arguments: in containers, in objects, and inside other tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import FunctionCtx
from torch.nn import Module

from megatron_nanguard.tensor_names import is_wrapper

_DEEPEST: Final = 6
_MOST_TENSORS: Final = 128
_MOST_VALUES: Final = 2_048
_MOST_IN_ONE: Final = 512
"""A list of token ids has a million plain numbers; containers of tensors are short."""
_PLAIN: Final = (type(None), str, bytes, int, float, complex, type, torch.dtype, torch.device, torch.Generator)
_OF_OTHERS: Final = ("main_grad", "grad")
"""Attributes of a tensor that are not part of its value."""

NamedValue = tuple[str, Tensor]


def tensors_within(value: object, name: str = "", unreadable: list[str] | None = None) -> Iterator[NamedValue]:
    """Yield name and tensor of at most 128 tensors in a value.

    Of a tensor that wraps others, such as a quantized one, it yields the inner tensors: they have the memory. It goes
    into containers and into the attributes of objects, but not into modules or callables: these belong to the model,
    and a call does not take all of the model as its argument.

    Args:
        value: a tensor, a container, or any object.
        name: of the value; names inside of it are like "quantizer.scale" or "tensors.0".
        unreadable: gets the names of objects that raise when they are asked what is in them.
    """
    return islice(_TensorSearch([] if unreadable is None else unreadable).within(value, name), _MOST_TENSORS)


@dataclass
class _TensorSearch:
    """A search through one value.

    Attributes:
        unreadable: names of objects that raised.
        left: how many values may still be looked into, beside plain ones.
        seen: identities of those that were looked into; all of them are held by the value.
    """

    unreadable: list[str]
    left: int = _MOST_VALUES
    seen: set[int] = field(default_factory=set)

    def within(self, value: object, name: str, depth: int = 0) -> Iterator[NamedValue]:
        self.left -= 1
        if self.left < 0:
            return
        try:
            found = _look_into(value)
        except Exception:  # An object of the user's may raise anything when it is asked for its attributes.
            self.unreadable.append(name)
            return
        if isinstance(found, Tensor):
            yield name, found
        elif found and depth <= _DEEPEST and id(value) not in self.seen:
            self.seen.add(id(value))
            for key, one in found:
                yield from self.within(one, f"{name}.{key}" if name else key, depth + 1)


def _look_into(value: object) -> Tensor | list[tuple[str, object]]:
    """Return the tensor that has the memory of a value, or what is in the value, by name; an empty list for nothing."""
    if isinstance(value, Tensor):
        while torch._C._functorch.is_functorch_wrapped_tensor(value):
            value = torch._C._functorch.get_unwrapped(value)
        if not is_wrapper(value):
            return value
        # A fake tensor has no values; what hangs on it belongs to its mode.
        inner = {} if isinstance(value, FakeTensor) else vars(value)
        return _named((key, one) for key, one in inner.items() if key not in _OF_OTHERS)
    if isinstance(value, dict):
        return _named(value.items())
    if isinstance(value, list | tuple):
        return _named(enumerate(value))
    if isinstance(value, Module | FunctionCtx) or callable(value):
        return []
    return _named(vars(value).items()) if hasattr(value, "__dict__") else []


def _named(values: Iterable[tuple[object, object]]) -> list[tuple[str, object]]:
    """Leave out what holds no tensors. The type is asked, since an object may raise when it is asked for its class."""
    return [(str(key), one) for key, one in islice(values, _MOST_IN_ONE) if not issubclass(type(one), _PLAIN)]
