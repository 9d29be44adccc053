"""Apply one patch point to real Megatron, let Megatron call it, undo it, and compare by identity."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from megatron_nanguard.patching.engine import Engine
from megatron_nanguard.patching.point import PatchPoint, PointState, line_of

RELEASE = "0.19"


def resolve(path: str) -> Any:
    """The object at ``module:name`` or ``module:Class.name`` as its holder has it; None where there is none."""
    module, _, attribute = path.partition(":")
    found: Any = sys.modules[module]
    for name in attribute.split("."):
        found = None if found is None else vars(found).get(name)
    return found


@contextmanager
def applied(point: PatchPoint, handler: Callable[..., Any]) -> Iterator[None]:
    """The point with this handler, on whatever part of Megatron is imported."""
    engine = Engine((point,), lambda name: handler, lambda: line_of(RELEASE))
    places = [place for target in point.targets for place in (target.path, *target.copies)]
    places = [place for place in places if place.partition(":")[0] in sys.modules]
    before = [resolve(place) for place in places]
    engine.install()
    states = {target.path: engine.state(target) for target in point.targets}
    assert PointState.ACTIVE in states.values(), states
    assert not engine.declined
    try:
        yield
    finally:
        assert engine.remove() == []
    assert [place for place, was in zip(places, before, strict=True) if resolve(place) is not was] == []
