"""Packages that patch the host as well: our wrappers are withdrawn while one of them is at work."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from megatron_nanguard.patching.engine import find_owner, when_imported
from megatron_nanguard.patching.point import Target


class OtherPatchers:
    """Runs the patching functions of other packages inside a context of ours.

    Args:
        paths: the functions, ``package.module:Class.method``; one that a version lacks is passed over.
        aside: gives the context; may be nested.
    """

    def __init__(self, paths: Sequence[str], aside: Callable[[], AbstractContextManager[None]]) -> None:
        self._targets = [Target(path) for path in paths]
        self._aside = aside
        self._on = False
        self._wrapped: list[tuple[object, str, object, object]] = []
        """Owner and name of each function, what was there, and what is there now."""

    def install(self) -> None:
        """Wrap every function whose module is imported, now or later. Idempotent."""
        if self._on:
            return
        self._on = True
        for name in dict.fromkeys(target.module for target in self._targets):
            when_imported(name, self._module_arrived)

    def remove(self) -> None:
        """Put the functions back, unless somebody has wrapped them since; ours then has no effect."""
        self._on = False
        while self._wrapped:
            owner, name, original, ours = self._wrapped.pop()
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)

    def _module_arrived(self, module: ModuleType) -> None:
        for target in self._targets:
            owner, name = find_owner(target, module)
            if self._on and target.module == module.__name__ and owner is not None and name in vars(owner):
                original = vars(owner)[name]
                is_static = isinstance(original, staticmethod)
                call = self._standing_aside(original.__func__ if is_static else original)
                ours = staticmethod(call) if is_static else call
                setattr(owner, name, ours)
                self._wrapped.append((owner, name, original, ours))

    def _standing_aside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def patch_the_host(*args: object, **kwargs: object) -> object:
            with self._aside():
                return function(*args, **kwargs)

        return patch_the_host
