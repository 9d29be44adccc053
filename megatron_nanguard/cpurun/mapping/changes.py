"""Attributes that were changed, with their values before."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

Function = Callable[..., Any]
"""A function of torch or Megatron, or one in its place; arguments pass through."""

_MISSING = object()


class ChangedAttributes:
    """Changes attributes of modules and classes, and restores them in reverse order.

    A copy of a wrapper (`from torch import compile`) stays in place after `restore`. It then calls the original,
    because it checks at each call whether the changes still apply.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Any, str, object]] = []

    @property
    def is_applied(self) -> bool:
        """Whether any attribute is changed at present."""
        return bool(self._entries)

    def put(self, owner: Any, name: str, value: object) -> None:
        """Set `owner.name`, and remember the value that the owner itself had; an inherited attribute does not count."""
        self._entries.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def put_all(self, owner: Any, values: Mapping[str, object]) -> None:
        """Set several attributes of one owner, by name."""
        for name, value in values.items():
            self.put(owner, name, value)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Function]) -> None:
        """Replace the callable `owner.name` by `make(original)`."""
        original = getattr(owner, name)
        mapped = make(original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return (mapped if self.is_applied else original)(*args, **kwargs)

        self.put(owner, name, staticmethod(wrapper) if name == "__new__" else wrapper)

    def names(self, owner: Any) -> set[str]:
        """Names of the attributes of an owner that are changed."""
        return {name for entry, name, _ in self._entries if entry is owner}

    def restore(self) -> None:
        """Restore all attributes, last change first."""
        while self._entries:
            owner, name, original = self._entries.pop()
            if original is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
