"""`--nanguard-watch`: watch the chosen modules of this rank in the chosen steps, until the first bad values."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

from torch.nn import Module

from megatron_nanguard.watching.bad_values import BadValues
from megatron_nanguard.watching.module_hooks import Guarded, ModuleHooks

log = logging.getLogger("megatron_nanguard")

Write = Callable[[str, Callable[[], str]], str | None]
"""``write(name, save)`` calls ``save``, which says what came of it."""


class Watcher:
    """Watches the modules of one rank. Outside of the chosen steps, and after a hit, the model has no hooks.

    Args:
        modules: of this rank by global name, as `name_modules` gives them.
        pattern: regular expression, searched in their names.
        steps: first and last step to watch; all steps if None.
        above: magnitude above which finite values count as bad.
        rank: of this process.
        directory: of the run; the file goes into its `watch/`.
        speaks: called at a hit; whether this rank writes the log line. Every rank writes its file.
        guarded: context manager around every hook, such as the shield; takes the name of the place.
        write: saves the file, and gives None where that takes too long.
    Attributes:
        hit: the first bad values; None as long as there are none.
        num_modules: how many modules match; it may be 0 on a pipeline stage.
    """

    def __init__(
        self,
        modules: Mapping[str, Module],
        pattern: str,
        steps: tuple[int, int] | None,
        above: float | None,
        *,
        rank: int,
        directory: Path,
        speaks: Callable[[], bool] = lambda: True,
        guarded: Guarded = lambda where: nullcontext(),
        write: Write = lambda name, save: save(),
    ) -> None:
        chosen = {name: module for name, module in modules.items() if re.search(pattern, name)}
        self.hit: BadValues | None = None
        self.num_modules = len(chosen)
        self._steps, self._rank, self._directory, self._speaks = steps, rank, directory, speaks
        self._write = write
        self._hooks = ModuleHooks(chosen, above, self._on_hit, guarded)

    def step_begins(self, step: int) -> None:
        """Begin to watch a step. A step may begin again: what is left of the pass before is dropped."""
        self.step_ends()
        is_chosen = self._steps is None or self._steps[0] <= step <= self._steps[1]
        if self.hit is None and is_chosen:
            self._hooks.begin(step)

    def step_ends(self) -> None:
        """Stop watching: forwards and backwards after this belong to an evaluation or a replay."""
        self._hooks.stop()

    def _on_hit(self, hit: BadValues) -> None:
        self.hit = hit
        name = f"watch/rank{self._rank:05d}_step{hit.step:08d}.pt"
        path = self._directory / name

        def save() -> str:
            try:
                hit.save(path)
            except OSError as error:
                return f"not saved: {path}: {error.strerror or error}"
            return f"saved in {path}"

        outcome = self._write(name, save) or f"not saved in time: {path}"
        if self._speaks():
            log.warning("watch: step %s, rank %s: %s; %s", hit.step, self._rank, hit, outcome)
