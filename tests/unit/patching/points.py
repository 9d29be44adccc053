"""Patch points for the host of these tests, and a record of what their handlers saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megatron_nanguard.patching.engine import Engine
from megatron_nanguard.patching.point import PatchPoint, Target, Wrapper

RELEASE = (0, 12)


def make_wrapper(seen: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], None]) -> Wrapper:
    """Tell ``seen``, then call; a result of 100 more shows that the wrapper was there."""

    def wrapper(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        seen(instance, args, kwargs)
        return wrapped(*args, **kwargs) + 100

    return wrapper


def point(*targets: Target, name: str = "norm", group: str = "norm") -> PatchPoint:
    """A patch point of some targets."""
    return PatchPoint(name, group, targets, why="to see it", lost="the sight of it", make_wrapper=make_wrapper)


class Seen:
    """An engine and the calls its handlers got."""

    def __init__(self, *points: PatchPoint, release: tuple[int, int] | None = RELEASE) -> None:
        self.calls: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = []
        self.engine = Engine(points, self._handler, lambda: release)

    def _handler(self, name: str) -> Callable[..., None]:
        def seen(instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            self.calls.append((name, instance, args, dict(kwargs)))

        return seen
