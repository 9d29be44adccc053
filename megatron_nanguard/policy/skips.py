"""Policy skip has a budget: a run that skips too much is not training."""

from __future__ import annotations

from collections import deque


class SkipBudget:
    """At most N skips in the last M steps.

    Args:
        num_skips: N.
        window: M.
    """

    def __init__(self, num_skips: int, window: int) -> None:
        self.num_skips, self.window = num_skips, window
        self._steps: deque[int] = deque()

    def allows(self, step: int) -> bool:
        """Whether this step may be skipped too; counts it."""
        self._steps.append(step)
        while self._steps[0] <= step - self.window:
            self._steps.popleft()
        return len(self._steps) <= self.num_skips
