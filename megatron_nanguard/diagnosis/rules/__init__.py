"""The rules, one file for each cause.

A file has a function `judge(case, scales)`, which weighs what speaks for and against its cause. It does no IO.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.rules import (
    checker_artifact,
    communication,
    data,
    framework,
    hardware_persistent,
    hardware_transient,
    loss_or_mask,
    loss_scaler,
    norm_overflow,
    numerics,
    operator,
    state_corruption,
    uninitialised_or_race,
)
from megatron_nanguard.diagnosis.weighing import Scales
from megatron_nanguard.records.causes import Cause, RankedCause


class Rule(NamedTuple):
    """How one cause is judged.

    Attributes:
        cause: which one.
        judge: weighs the facts of a case.
        prior: log odds of the cause before any fact is seen.
    """

    cause: Cause
    judge: Callable[[Case, Scales], None]
    prior: float = -1.5

    def reading(self, case: Case) -> RankedCause | None:
        """The cause with its confidence; None when nothing speaks for it."""
        scales = Scales(self.cause, self.prior)
        self.judge(case, scales)
        return scales.reading()


RULES: Final = {
    rule.cause: rule
    for rule in (
        Rule(Cause.STATE_CORRUPTION, state_corruption.judge),
        Rule(Cause.DATA, data.judge),
        Rule(Cause.LOSS_OR_MASK, loss_or_mask.judge, prior=-1.0),
        Rule(Cause.UNINITIALISED_OR_RACE, uninitialised_or_race.judge),
        Rule(Cause.COMMUNICATION, communication.judge),
        Rule(Cause.OPERATOR, operator.judge),
        Rule(Cause.FRAMEWORK, framework.judge),
        Rule(Cause.NUMERICS, numerics.judge, prior=-1.0),
        Rule(Cause.LOSS_SCALER, loss_scaler.judge),
        Rule(Cause.NORM_OVERFLOW, norm_overflow.judge),
        Rule(Cause.HARDWARE_TRANSIENT, hardware_transient.judge, prior=-2.0),
        Rule(Cause.HARDWARE_PERSISTENT, hardware_persistent.judge, prior=-2.5),
        Rule(Cause.CHECKER_ARTIFACT, checker_artifact.judge, prior=-2.0),
    )
}
"""Of causes with the same confidence the first one is named first: what can be checked at once, before hardware."""
