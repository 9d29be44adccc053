"""The state of every patch point in this process, for `nanguard doctor`."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from megatron_nanguard.patching.engine import Engine
from megatron_nanguard.patching.point import PatchPoint, PointState, Target, line_of
from megatron_nanguard.records.machine.doctor import PatchPointState


def point_states(
    engine: Engine, essential: tuple[str, ...], ask_release: Callable[[], tuple[int, int] | None]
) -> list[PatchPointState]:
    """Import the module of every target and return the target's state. The release is read after the imports."""
    unimportable = {
        target.module: problem
        for point in engine.points
        for target in point.targets
        if (problem := _import(target.module)) is not None
    }
    release = ask_release()
    found = []
    for point in engine.points:
        for target in point.targets:
            works, words = _finding(engine, point, target, unimportable.get(target.module), release)
            found.append(PatchPointState(point.name, target.path, point.group in essential, works, words))
    return found


def _import(module: str) -> str | None:
    """Return why a module cannot be imported; None if it can. An import of the host may fail with any error."""
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def _finding(
    engine: Engine, point: PatchPoint, target: Target, problem: str | None, release: tuple[int, int] | None
) -> tuple[bool, str]:
    """Whether the release works with the target as it is, and its state in words."""
    state = engine.state(target)
    works = state in (PointState.ACTIVE, PointState.ABSENT)
    if state is PointState.ACTIVE and target.called_until and release and release > line_of(target.called_until):
        words = "active, not called by this release"
    elif state is PointState.ACTIVE:
        words = "active"
    elif state is PointState.ABSENT:
        words = f"not in this release ({target.since} to {target.until}), not needed"
    elif state is PointState.FOREIGN:
        words = f"replaced by another package after us; lost: {point.lost}"
    elif state is PointState.DECLINED:
        words = f"not applied: {engine.declined[point.group]}"
    elif release is not None and not target.covers(release):
        works, words = True, f"not in this release ({target.since} to {target.until}), not needed"
    else:
        words = f"its module cannot be imported ({problem}); lost: {point.lost}"
    return works, words
