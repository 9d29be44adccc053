"""fp16: overflow is how a dynamic loss scaler finds its scale. When is it more than that?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from megatron_nanguard.records.incident import PolicyOutcome

COUNTED_SKIP = PolicyOutcome("scaler", "skip", None, "")


class Judgement(Enum):
    """What a step with a dynamic loss scaler is."""

    CLEAR = "clear"
    """Applied."""
    SKIP = "skip"
    """Overflow that is the scaler at work: counted, skipped, nothing written."""
    CHECK = "check"
    """Overflow at a scale that steps were applied at: a skip if the step is finite far below it, else an incident."""
    INCIDENT = "incident"
    """A loss that is not finite, no scale left, or too many skips in a row."""


@dataclass
class ScalerTally:
    """Counts skipped steps from exchanged flags.

    Attributes:
        limit: the Nth skip in a row is an incident.
        can_check: steps can be run again, as far as the settings go.
        searching: no step was applied yet: the scaler looks for its first scale.
        row: skips in a row.
        rest: steps until a check is due again.
        before: what `searching` and `row` were before the step judged last.
    """

    limit: int
    can_check: bool = False
    searching: bool = True
    row: int = 0
    rest: int = 0
    before: tuple[bool, int] = (True, 0)

    def judge(self, gradients: bool, loss: bool, minimal_scale: bool, raised_scale: bool) -> Judgement:
        """Count one step.

        Args:
            gradients: a gradient is suspicious, before or after the reduction.
            loss: a loss is not finite; no scale would help.
            minimal_scale: the scale cannot go down any further.
            raised_scale: the scale went up, and no step was applied at it yet.
        """
        self.before = self.searching, self.row
        self.rest = max(self.rest - 1, 0)
        if loss:
            return Judgement.INCIDENT
        if not gradients:
            self.searching, self.row = False, 0
            return Judgement.CLEAR
        self.row += 1
        if minimal_scale or (not self.searching and self.row >= self.limit):
            self.row = 0
            return Judgement.INCIDENT
        is_scaler_at_work = self.searching or raised_scale
        return Judgement.CHECK if self.can_check and not self.rest and not is_scaler_at_work else Judgement.SKIP

    def checked(self, window: int, is_bad: bool) -> None:
        """A check came to its end, or turned out to be impossible.

        Args:
            window: steps from this check to the next one at the earliest.
            is_bad: the step is an incident.
        """
        self.rest = window
        if is_bad:
            self.row = 0
