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
        has_bar = is_shown and sys.stderr.isatty()
        self._prints_lines = is_shown and not has_bar
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True, quiet=not has_bar)
        self._bar = Progress(*columns, console=console, transient=True, disable=not has_bar)
        self._task = self._bar.add_task("screening", total=steps)
        self._stage = ""

    def __enter__(self) -> StageProgress:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def step(self, stage: str, detail: str) -> None:
        """Show the next step.

        Args:
            stage: such as "links".
            detail: the step in that stage.
        """
        self._bar.update(self._task, description=f"{stage}: {detail}", advance=1)
        if self._prints_lines and stage != self._stage:
            print(f"screening {stage}", file=sys.stderr, flush=True)
        self._stage = stage
