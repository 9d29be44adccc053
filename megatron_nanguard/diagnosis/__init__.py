"""From what all ranks know to where it began and why: pure rules, no device, no file.

    joined = join(traces)                 the cross-rank origin
    causes = verdict(evidence)            ranked explanations, "undecided" among them
    patterns = advise(evidence)           names of texts in advice.json

`join` and `advise` are in the files of their names.

A rule is one file with `judge(evidence)`: one cause with what speaks for and against it, or None when nothing does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from megatron_nanguard.diagnosis import experiments
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.looking import first_look
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
    undecided,
    uninitialised_or_race,
)
from megatron_nanguard.records.incident import RankedCause

Rule = Callable[[Evidence], "RankedCause | None"]

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
"""Of causes equally sure the one that stands first is told first: what can be checked at once, before hardware."""

MENTIONED: Final = 0.05
"""Causes less sure than this are left out."""


def verdict(evidence: Evidence) -> tuple[RankedCause, ...]:
    """Rank the causes that anything speaks for, most likely first; undecided stands first where none stands out."""
    judged = [cause for rule in RULES if (cause := rule(evidence)) is not None and cause.confidence >= MENTIONED]
    ranked = sorted(judged, key=lambda cause: -cause.confidence)
    nothing_clear = undecided.judge(evidence, ranked)
    told = [*([nothing_clear] if nothing_clear else []), *ranked]
    return tuple(replace(cause, next=step) for cause, step in zip(told, _steps(told, ranked, evidence), strict=True))


def _steps(told: Sequence[RankedCause], ranked: Sequence[RankedCause], evidence: Evidence) -> Iterator[str]:
    """What to do about each cause; what stands beside one before it is not said again.

    The first is to be told from the second, every other from the first. Where nothing stands out, what is to be done
    about the likeliest stands beside that word.
    """
    said = {""}
    for cause in told:
        likeliest = ranked[0] if cause.cause == "undecided" and ranked else cause
        rival = next((other.cause for other in ranked if other is not likeliest), None)
        step = first_look(likeliest.cause, evidence) or experiments.cheapest(likeliest.cause, rival, evidence)
        yield "" if step in said else step
        said.add(step)
