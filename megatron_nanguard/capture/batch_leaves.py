"""Turn micro-batches into flat records and named tensors, and back.

{"tokens": tensor, "name": "a"}  <->  dict at [], tensor `batch/0/2/tokens` at ["tokens"], str a at ["name"]
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.capture.tensor_file import can_hold
from megatron_nanguard.errors import ReplayError
from megatron_nanguard.records.step.capture import CapturedItem, CapturedIterator, Leaf, LeafKind
from megatron_nanguard.tensor_names import dtype_name

_SCALARS: dict[type, LeafKind] = {bool: "bool", int: "int", float: "float"}
_KINDS: dict[type, LeafKind] = {dict: "dict", list: "list", tuple: "tuple"}
_READ: dict[LeafKind, Any] = {"bool": lambda text: text == "True", "int": int, "float": float, "str": str}
_CONTAINERS: dict[LeafKind, Callable[[list[tuple[Any, Any]]], Any]] = {
    "dict": dict,
    "list": lambda pairs: [value for _, value in pairs],
    "tuple": lambda pairs: tuple(value for _, value in pairs),
}


class Batcher:
    """Turns micro-batches into records, and collects their tensors.

    Args:
        keeps_text: whether text of samples is saved too.
    Attributes:
        tensors: by name; not copied.
        left_out: values that cannot be saved, in words.
    """

    def __init__(self, keeps_text: bool) -> None:
        self._keeps_text = keeps_text
        self.tensors: dict[str, Tensor] = {}
        self.left_out: list[str] = []

    def take_apart(self, batch: Sequence[Sequence[object]]) -> tuple[CapturedIterator, ...]:
        """Turn the items of each data iterator into records."""
        return tuple(
            CapturedIterator(
                tuple(
                    CapturedItem(tuple(self._leaves(item, (), f"batch/{number}/{place}")))
                    for place, item in enumerate(items)
                )
            )
            for number, items in enumerate(batch)
        )

    def _leaves(self, value: object, path: tuple[str, ...], name: str) -> Iterator[Leaf]:
        if isinstance(value, Tensor) and can_hold(value):
            yield self._tensor(value, path, name)
        elif isinstance(value, dict | list | tuple) and type(value) in _KINDS and _has_plain_keys(value):
            yield Leaf(path, _KINDS[type(value)])
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for key, inner in pairs:
                yield from self._leaves(inner, (*path, json.dumps(key)), f"{name}/{key}")
        elif value is None:
            yield Leaf(path, "none")
        elif type(value) in _SCALARS:
            yield Leaf(path, _SCALARS[type(value)], repr(value))
        elif type(value) is str:
            yield Leaf(path, "str", value if self._keeps_text else "")
        else:
            self.left_out.append(f"{name}: a {type(value).__name__} has no form in a file")
            yield Leaf(path, "left_out", type(value).__name__)

    def _tensor(self, tensor: Tensor, path: tuple[str, ...], name: str) -> Leaf:
        # Keys that contain a slash can give the same name as nested keys.
        unique = name if name not in self.tensors else f"{name}#{len(self.tensors)}"
        self.tensors[unique] = tensor
        dtype = dtype_name(tensor.dtype)
        return Leaf(path, "tensor", unique, tuple(tensor.shape), dtype, tensor.device.type)


def put_together(
    iterators: Sequence[CapturedIterator], tensors: Mapping[str, Tensor], device: torch.device
) -> list[list[Any]]:
    """Turn records back into the items of each data iterator.

    Args:
        iterators: from `take_apart`.
        tensors: of the file.
        device: for tensors that were on an accelerator.
    Raises:
        ReplayError: a value was left out, or a tensor is missing.
    """
    return [[_item(item.leaves, tensors, device) for item in iterator.items] for iterator in iterators]


def _item(leaves: Sequence[Leaf], tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    values = {leaf.path: _value(leaf, tensors, device) for leaf in leaves}
    inside: dict[tuple[str, ...], list[tuple[Any, Any]]] = defaultdict(list)
    # From the back: the content of a container comes after it and must be built first.
    for leaf in reversed(leaves):
        if leaf.kind in _CONTAINERS:
            values[leaf.path] = _CONTAINERS[leaf.kind](inside[leaf.path][::-1])
        if leaf.path:
            inside[leaf.path[:-1]].append((json.loads(leaf.path[-1]), values[leaf.path]))
    return values[()]


def _value(leaf: Leaf, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    if leaf.kind == "tensor":
        if leaf.text not in tensors:
            raise ReplayError(f"the capture has no tensor {leaf.text}")
        return tensors[leaf.text].to(device if leaf.device != "cpu" else "cpu")
    if leaf.kind == "left_out":
        raise ReplayError(f"a micro-batch held a {leaf.text}, which could not be saved: the step cannot be run again")
    if leaf.kind == "none" or leaf.kind in _CONTAINERS:
        return None
    return _READ[leaf.kind](leaf.text)


def _has_plain_keys(value: object) -> bool:
    return not isinstance(value, dict) or all(type(key) in (str, int) for key in value)
