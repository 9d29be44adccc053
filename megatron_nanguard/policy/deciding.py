"""What the policy that the user asked for makes of an incident, with the sentence for log and report."""

from __future__ import annotations

from collections import deque
from typing import Final

from megatron_nanguard.coordination.watchdog import EXIT_CODE
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.records.phrase import phrase

PASS: Final = PolicyOutcome("none", "continue", None, "")
"""Decision about a step without an alarm."""


class SkipBudget:
    """At most N skips in the last M steps: a run that skips more is not training.

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


def decide(name: str, step: int, budget: SkipBudget, *, has_bad_copy: bool = False) -> PolicyOutcome:
    """Decide about an incident. Every rank decides the same, since every rank counted the same skips.

    Args:
        name: of the policy: abort, skip or continue.
        step: of the incident.
        budget: how many steps may be skipped.
        has_bad_copy: a model weight is bad and its main parameter good, which a skip leaves as it is.
    """
    action = "abort"
    if name == "skip" and has_bad_copy:
        sentence = phrase(
            "A model weight is bad though its main parameter is good, and every skipped step would meet it again: "
            "all ranks leave with exit code {code}",
            code=EXIT_CODE,
        )
    elif name == "skip" and not budget.allows(step):
        sentence = phrase(
            "More than {skips} of the last {window} steps were skipped (--nanguard-max-skips): all ranks leave "
            "with exit code {code}",
            skips=budget.num_skips,
            window=budget.window,
            code=EXIT_CODE,
        )
    elif name == "skip":
        action, sentence = name, phrase("Policy skip: the step is skipped on all ranks")
    elif name == "continue":
        action, sentence = name, phrase("Policy continue: the step is applied all the same")
    else:
        sentence = phrase("Policy abort: all ranks leave with exit code {code}", code=EXIT_CODE)
    exit_code = EXIT_CODE if action == "abort" else None
    return PolicyOutcome(name, action, exit_code, phrase("{sentence}.", sentence=sentence))
