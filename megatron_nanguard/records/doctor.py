"""How one patch point stands in an environment, for `nanguard doctor`."""

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
