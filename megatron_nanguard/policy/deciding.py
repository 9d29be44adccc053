"""From the policy that was asked for to what is done, with the words for it."""

from __future__ import annotations

from megatron_nanguard.coordination.watchdog import EXIT_CODE
from megatron_nanguard.policy.skips import SkipBudget
from megatron_nanguard.records.incident import PolicyOutcome


def decide(name: str, step: int, budget: SkipBudget, *, has_bad_copy: bool = False) -> PolicyOutcome:
    """What is done about an incident; the same on every rank, since every rank counted the same skips.

    Args:
        name: abort, skip or continue.
        step: of the incident.
        budget: how much may be skipped.
        has_bad_copy: a model weight is bad and its main parameter good, which a skip leaves as it is.
    """
    if name == "skip" and has_bad_copy:
        return _abort(
            name,
            "A model weight is bad though its main parameter is good, and every skipped step would meet it again: "
            f"all ranks leave with exit code {EXIT_CODE}.",
        )
    if name == "skip" and not budget.allows(step):
        return _abort(
            name,
            f"More than {budget.num_skips} of the last {budget.window} steps were skipped (--nanguard-max-skips): "
            f"all ranks leave with exit code {EXIT_CODE}.",
        )
    if name == "skip":
        return PolicyOutcome(name, "skip", None, "Policy skip: the step is skipped on all ranks.")
    if name == "continue":
        return PolicyOutcome(name, "continue", None, "Policy continue: the step is applied all the same.")
    return _abort(name, f"Policy abort: all ranks leave with exit code {EXIT_CODE}.")


def _abort(name: str, words: str) -> PolicyOutcome:
    return PolicyOutcome(name, "abort", EXIT_CODE, words)
