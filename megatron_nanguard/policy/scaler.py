"""fp16: overflow is how a dynamic loss scaler finds its scale. When is it more than that?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Judgement(Enum):
    """What a step with a dynamic loss scaler is."""

    CLEAR = "clear"
    """Applied."""
    SKIP = "skip"
    """Overflow that is the scaler at work: counted, skipped, nothing written."""
    INCIDENT = "incident"
    """A loss that is not finite, no scale left, or too many skips in a row."""


@dataclass
class ScalerTally:
    """Counts skipped steps from exchanged flags.

    Attributes:
        limit: the Nth skip in a row is an incident.
        searching: no step was applied yet: the scaler looks for its first scale.
        row: skips in a row.
        before: what `searching` and `row` were before the step judged last.
    """

    limit: int
    searching: bool = True
    row: int = 0
    before: tuple[bool, int] = (True, 0)

    def judge(self, gradients: bool, loss: bool, minimal_scale: bool) -> Judgement:
        """Count one step.

        Args:
            gradients: a gradient is suspicious, before or after the reduction.
            loss: a loss is not finite; no scale would help.
            minimal_scale: the scale cannot go down any further.
        """
        self.before = self.searching, self.row
        if loss:
            return Judgement.INCIDENT
        if not gradients:
            self.searching, self.row = False, 0
            return Judgement.CLEAR
        self.row += 1
        if minimal_scale or (not self.searching and self.row >= self.limit):
            self.row = 0
            return Judgement.INCIDENT
        return Judgement.SKIP
