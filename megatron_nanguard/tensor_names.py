"""How we name tensors and dtypes: the path of a tensor in nested containers, `bfloat16` for `torch.bfloat16`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_PLAIN = (int, float, str, torch.dtype, torch.device)

Path = tuple[Any, ...]
"""Keys and indexes from the outermost container to a tensor."""
Attributes = Callable[[object], Mapping[str, object]]
"""Gives the attributes of an object that is no container."""


def _no_attributes(value: object) -> Mapping[str, object]:
    return {}


def tensors_in(
    value: object, attributes: Attributes = _no_attributes, path: Path = ()
) -> Iterator[tuple[Path, Tensor]]:
    """Yield every tensor in nested mappings, lists and tuples with its path, depth first.

    `torch.utils._pytree` would not do: it stops at mappings that are no dict, and at objects.

    Args:
        value: a tensor, a container or anything else.
        attributes: gives the attributes to descend into of an object that is no container; of none by default.
        path: put in front of each path.
    """
    if isinstance(value, Tensor):
        yield path, value
        return
    # The tracer asks for every argument of every operator; asking a number whether it is a Mapping takes longest.
    if value is None or isinstance(value, _PLAIN):
        return
    if isinstance(value, list | tuple):
        inside: list[tuple[Any, object]] = list(enumerate(value))
    else:
        inside = list((value if isinstance(value, Mapping) else attributes(value)).items())
    for key, item in inside:
        yield from tensors_in(item, attributes, (*path, key))


def named_tensors(value: object, attributes: Attributes = _no_attributes) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of `tensors_in` with a name such as `hidden_states` or `images.0`; a bare tensor has none."""
    for path, tensor in tensors_in(value, attributes):
        yield ".".join(map(str, path)), tensor


def is_wrapper(tensor: Tensor) -> bool:
    """Whether a tensor wraps others, such as a quantized one, and has no memory of its own."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def element_index(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Index of the element with this number, which counts over the flattened tensor."""
    index = []
    for size in reversed(shape):
        number, position = divmod(number, size)
        index.append(position)
    return tuple(reversed(index))


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.bfloat16` -> `bfloat16`."""
    return str(dtype).removeprefix("torch.")
