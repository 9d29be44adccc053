"""Which attributes were changed, and what stood there before."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MISSING = object()


class ChangedAttributes:
    """Changes attributes of modules and classes, and puts them back in reverse order.

    A wrapper that somebody copied (`from torch import compile`) outlives the changes's page; it then passes
    through to the original, because it asks at call time whether the changes is open.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Any, str, object]] = []

    @property
    def is_open(self) -> bool:
        """Whether anything is changed at present."""
        return bool(self._entries)

    def put(self, owner: Any, name: str, value: object) -> None:
        """Set `owner.name`, remembering what the owner itself held (an inherited attribute is not its own)."""
        self._entries.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace the callable `owner.name` by `make(original)`."""
        original = getattr(owner, name)
        mapped = make(original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return (mapped if self.is_open else original)(*args, **kwargs)

        self.put(owner, name, staticmethod(wrapper) if name == "__new__" else wrapper)

    def names(self, owner: Any) -> set[str]:
        """Names of the owner's attributes that were changed."""
        return {name for entry, name, _ in self._entries if entry is owner}

    def restore(self) -> None:
        """Put everything back, last change first."""
        while self._entries:
            owner, name, original = self._entries.pop()
            if original is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
