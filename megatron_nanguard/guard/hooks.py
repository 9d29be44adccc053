"""The patch points of this process, and the guard behind them, built when the first Megatron module is imported."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from megatron_nanguard.patch_points import OTHER_PATCHERS, POINTS, add_training_args, release_line
from megatron_nanguard.patching.engine import Engine
from megatron_nanguard.patching.other_patchers import OtherPatchers
from megatron_nanguard.patching.point import PatchPoint

if TYPE_CHECKING:
    from megatron_nanguard.guard.guard import Guard


class Hooks:
    """The patch points, installed. Torch is imported with the first handler: by then Megatron has done so."""

    def __init__(self, points: Sequence[PatchPoint] = POINTS) -> None:
        self.engine = Engine(points, lambda name: self.guard.handlers[name], release_line)
        self._others = OtherPatchers(OTHER_PATCHERS, self.engine.stand_aside)
        self._guard: Guard | None = None

    @classmethod
    def of_options_alone(cls) -> Hooks:
        """For a run that is switched off: the command line may still hold our options."""
        return cls([add_training_args.POINT])

    @property
    def guard(self) -> Guard:
        """The guard of this process."""
        if self._guard is None:
            from megatron_nanguard.guard.guard import Guard

            self._guard = Guard(self.engine)
        return self._guard

    def install(self) -> None:
        """Register every patch point."""
        _log_to_stderr()
        self.engine.install()
        self._others.install()

    def remove(self) -> list[str]:
        """Undo everything; the targets that somebody else has wrapped since."""
        if self._guard is not None:
            self._guard.remove()
        self._others.remove()
        return self.engine.remove()


def _log_to_stderr() -> None:
    """Log to stderr whatever the host does to the root logger, unless the host has set up our logger."""
    log = logging.getLogger("megatron_nanguard")
    if log.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[nanguard] %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
