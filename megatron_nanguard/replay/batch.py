"""What a data iterator hands out, copied so that neither its consumer nor a second thread can change the copy."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.errors import ReplayError
from megatron_nanguard.tensor_names import named_tensors


def copied(item: Any) -> Any:
    """A copy with containers and tensors of its own; anything else is copied the shallow way.

    Containers: a consumer may pop from the dict or write device tensors into it. Tensors: it may change them in place.

    Raises:
        ReplayError: something in it cannot be copied.
    """
    if isinstance(item, Tensor):
        return item.detach().clone()
    if type(item) is dict:
        return {key: copied(value) for key, value in item.items()}
    if type(item) in (list, tuple):
        return type(item)(copied(value) for value in item)
    try:
        twin = copy.copy(item)
    except TypeError as error:
        raise ReplayError(f"a micro-batch holds a {type(item).__name__}, which cannot be copied ({error})") from None
    if vars_of(item):
        vars(twin).update({name: copied(value) for name, value in vars_of(item).items()})
    return twin


def vars_of(item: Any) -> dict[str, Any]:
    """Attributes of an object such as a batch class; nothing for functions and for objects without a dict."""
    return {} if callable(item) else getattr(item, "__dict__", {})


class FetchedItem:
    """One item as it was when it was fetched.

    Args:
        item: what the consumer got. Its tensors are only watched: they live and die with the consumer.
    Attributes:
        content: the copy.
    """

    def __init__(self, item: Any) -> None:
        self.content = copied(item)
        self._originals = [weakref.ref(tensor) for _, tensor in named_tensors(item, vars_of)]

    def changed(self, consumed: Any = None) -> list[str]:
        """Where the original differs by now from the copy, as far as it still lives.

        Args:
            consumed: another copy, after the same consumer had it: what it changes itself is no news.
        Sync: host reads, one per tensor on a device.
        """
        after = dict(named_tensors(consumed, vars_of))
        changed = []
        for (name, tensor), original in zip(named_tensors(self.content, vars_of), self._originals, strict=True):
            now, used = original(), after.get(name)
            if now is not None and not _same(now, tensor) and (used is None or not _same(now, used)):
                changed.append(name)
        return changed


def _same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, so that a NaN equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    bits = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*bits)
