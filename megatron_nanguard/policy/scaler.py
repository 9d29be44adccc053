"""fp16: a dynamic loss scaler finds its scale by overflow. Decides which overflows are more than that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from megatron_nanguard.records.incident import PolicyOutcome

COUNTED_SKIP = PolicyOutcome("scaler", "skip", None, "")


class Judgement(Enum):
    """What a step is, judged by its flags and the skips before it."""

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
        can_check: the settings let a step be run again.
        searching: the scaler looks for its first scale; no step was applied yet.
        skips_in_a_row: up to the last step.
        steps_to_check: steps until the next check may be made.
        before: `searching` and `skips_in_a_row` before the step that was judged last.
    """

    limit: int
    can_check: bool = False
    searching: bool = True
    skips_in_a_row: int = 0
    steps_to_check: int = 0
    before: tuple[bool, int] = (True, 0)

    def judge(self, gradients: bool, loss: bool, minimal_scale: bool, raised_scale: bool) -> Judgement:
        """Count one step.

        Args:
            gradients: a gradient is suspicious, before or after the reduction.
            loss: a loss is not finite; no scale would help.
            minimal_scale: the scale cannot go down any further.
            raised_scale: the scale went up, and no step was applied at it yet.
        """
        self.before = self.searching, self.skips_in_a_row
        self.steps_to_check = max(self.steps_to_check - 1, 0)
        if loss:
            return Judgement.INCIDENT
        if not gradients:
            self.searching, self.skips_in_a_row = False, 0
            return Judgement.CLEAR
        self.skips_in_a_row += 1
        if minimal_scale or (not self.searching and self.skips_in_a_row >= self.limit):
            self.skips_in_a_row = 0
            return Judgement.INCIDENT
        is_scaler_at_work = self.searching or raised_scale
        return (
            Judgement.CHECK if self.can_check and not self.steps_to_check and not is_scaler_at_work else Judgement.SKIP
        )

    def checked(self, window: int, is_bad: bool) -> None:
        """A check is over, or turned out to be impossible.

        Args:
            window: steps from this check to the next one at the earliest.
            is_bad: the step is an incident.
        """
        self.steps_to_check = window
        if is_bad:
            self.skips_in_a_row = 0
