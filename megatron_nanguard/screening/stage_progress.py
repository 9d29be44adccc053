"""Progress of a screening on rank 0: a bar on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class StageProgress:
    """Context manager around a screening.

    Args:
        steps: number of steps.
        is_shown: whether this rank shows it.
    """

    def __init__(self, steps: int, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._bar: Progress | None = None
        if is_shown and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("screening", total=steps)
        self._stage = ""

    def __enter__(self) -> StageProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, stage: str, detail: str) -> None:
        """Show the next step.

        Args:
            stage: such as "links".
            detail: the step in that stage.
        """
        if self._bar is not None:
            self._bar.update(self._task, description=f"{stage}: {detail}")
            self._bar.advance(self._task)
        elif self._is_shown and stage != self._stage:
            print(f"screening {stage}", file=sys.stderr, flush=True)
        self._stage = stage
