"""The rules, one file for each cause.

A rule is a function `judge(case)`. It weighs what speaks for and against its cause, and gives the cause with its
confidence, or None where nothing speaks for it. It does no IO.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

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
from megatron_nanguard.records.causes import RankedCause

Rule = Callable[[Case], "RankedCause | None"]

RULES: Final[tuple[Rule, ...]] = (
    state_corruption.judge,
    data.judge,
    loss_or_mask.judge,
    uninitialised_or_race.judge,
    communication.judge,
    operator.judge,
    framework.judge,
    numerics.judge,
    loss_scaler.judge,
    norm_overflow.judge,
    hardware_transient.judge,
    hardware_persistent.judge,
    checker_artifact.judge,
)
"""Of causes with the same confidence the first one is named first: what can be checked at once, before hardware."""
