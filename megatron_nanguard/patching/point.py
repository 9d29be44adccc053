"""A patch point as data: which functions of the host it wraps, why, and how the wrapper is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

Wrapped = Callable[..., Any]
"""The function of the host; if it is a method, bound to its instance."""

Args = tuple[Any, ...]
"""Its positional arguments, without the instance."""

Kwargs = Mapping[str, Any]
"""Its keyword arguments."""

Wrapper = Callable[[Wrapped, Any, Args, Kwargs], Any]
"""``wrapper(wrapped, instance, args, kwargs)`` is called instead of the function; a module function has no instance."""

KNOWN = ((0, 8), (0, 19))
"""First and last release line of the host that the table was checked against."""


@dataclass(frozen=True)
class Target:
    """One function of the host.

    Attributes:
        path: ``package.module:function`` or ``package.module:Class.method``.
        since, until: first and last release line that has it.
        parameters: names its signature must begin with, in this order.
        copies: other places that hold the same function under ``module:name`` because they imported it by name.
        called_until: last release line that calls it, where later ones keep it uncalled.
        family: of a method: every subclass that overrides it is wrapped too, whatever package it is from.
    """

    path: str
    since: str = "0.8"
    until: str = "0.19"
    parameters: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    called_until: str | None = None
    family: bool = False

    @property
    def module(self) -> str:
        return self.path.partition(":")[0]

    @property
    def attribute(self) -> str:
        return self.path.partition(":")[2]

    def covers(self, release: tuple[int, int]) -> bool:
        """Say whether the release line (major, minor) should have this function; unknown lines count as the nearest."""
        nearest = min(max(release, KNOWN[0]), KNOWN[1])
        return line_of(self.since) <= nearest <= line_of(self.until)


@dataclass(frozen=True)
class PatchPoint:
    """A reason to wrap one function of the host, or several that do the same.

    Attributes:
        group: points of one group are applied together or not at all.
        why: what the point is needed for.
        lost: what does not work without it.
        make_wrapper: takes the handler of this point, returns the wrapper for every target.
    """

    name: str
    group: str
    targets: tuple[Target, ...]
    why: str
    lost: str
    make_wrapper: Callable[[Any], Wrapper]


class PointState(Enum):
    """The state of a target in this process."""

    WAITING = "waiting"
    """Its module has not been imported."""
    ACTIVE = "active"
    """Our wrapper is in place."""
    ABSENT = "absent"
    """This release does not have the function, as the table says."""
    DECLINED = "declined"
    """It is missing, has another signature than the table says, or was withdrawn with its group."""
    FOREIGN = "foreign"
    """Another package wrapped or replaced it after us."""


def line_of(version: str) -> tuple[int, int]:
    """Release line of a version: ``0.17.1rc2`` -> (0, 17)."""
    match = re.match(r"(\d+)\.(\d+)", version)
    assert match is not None, f"{version!r} is no version"
    return int(match[1]), int(match[2])
