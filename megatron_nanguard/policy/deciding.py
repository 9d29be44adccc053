"""From the policy that was asked for to what is done, with the words for it."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.coordination.watchdog import EXIT_CODE
from megatron_nanguard.policy.skips import SkipBudget
from megatron_nanguard.records.incident import PolicyOutcome
from megatron_nanguard.records.phrase import Phrase, phrase

STOP: Final = phrase("{sentence}.")
BAD_COPY: Final = phrase(
    "A model weight is bad though its main parameter is good, and every skipped step would meet it again: "
    "all ranks leave with exit code {code}"
)
TOO_MANY: Final = phrase(
    "More than {skips} of the last {window} steps were skipped (--nanguard-max-skips): all ranks leave with exit code "
    "{code}"
)
ASKED: Final = phrase("Policy abort: all ranks leave with exit code {code}")
SKIPPED: Final = phrase("Policy skip: the step is skipped on all ranks")
CONTINUED: Final = phrase("Policy continue: the step is applied all the same")


def decide(name: str, step: int, budget: SkipBudget, *, has_bad_copy: bool = False) -> PolicyOutcome:
    """What is done about an incident; the same on every rank, since every rank counted the same skips.

    Args:
        name: abort, skip or continue.
        step: of the incident.
        budget: how much may be skipped.
        has_bad_copy: a model weight is bad and its main parameter good, which a skip leaves as it is.
    """
    if name == "skip" and has_bad_copy:
        return _abort(name, BAD_COPY.format(code=EXIT_CODE))
    if name == "skip" and not budget.allows(step):
        return _abort(name, TOO_MANY.format(skips=budget.num_skips, window=budget.window, code=EXIT_CODE))
    if name == "skip":
        return PolicyOutcome(name, "skip", None, STOP.format(sentence=SKIPPED))
    if name == "continue":
        return PolicyOutcome(name, "continue", None, STOP.format(sentence=CONTINUED))
    return _abort(name, ASKED.format(code=EXIT_CODE))


def _abort(name: str, sentence: Phrase) -> PolicyOutcome:
    return PolicyOutcome(name, "abort", EXIT_CODE, STOP.format(sentence=sentence))
