"""What `nanguard doctor` finds in an environment: patch points that work, and sources of hardware readings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PatchPointState:
    """One target of a patch point.

    Attributes:
        point: name of the patch point.
        target: the function, `package.module:Class.method`.
        essential: without its group a run is unguarded.
        works: in place, or not needed in this release.
        words: its state in words, with the reason and what is lost where it is not in place.
    """

    point: str
    target: str
    essential: bool
    works: bool
    words: str


@dataclass(frozen=True)
class SourceState:
    """Whether a source of hardware readings can be read on a machine.

    Attributes:
        name: of the source.
        tells: it has something to tell.
        words: how much, or why nothing.
    """

    name: str
    tells: bool
    words: str
