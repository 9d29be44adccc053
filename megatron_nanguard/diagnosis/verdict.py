"""The verdict on one incident: all causes that something speaks for, ranked, each with the next step to take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.next_steps import next_step
from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause, RankedCause, cause_words
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.trace import OriginKind


def verdict(case: Case) -> tuple[RankedCause, ...]:
    """Rank the causes that something speaks for, most likely first; "undecided" in front where none stands out.

    Of causes with the same confidence the rule that comes first in RULES comes first. Causes below 0.05 are left out.
    """
    judged = [
        cause for rule in RULES.values() if (cause := rule.reading(case)) is not None and cause.confidence >= 0.05
    ]
    ranked = sorted(judged, key=lambda cause: -cause.confidence)
    causes = ranked if _stands_out(ranked) else [_undecided(case, ranked), *ranked]
    return tuple(replace(cause, next=step) for cause, step in zip(causes, _steps(causes, ranked, case), strict=True))


def _steps(causes: Sequence[RankedCause], ranked: Sequence[RankedCause], case: Case) -> Iterator[str]:
    """The next step for each cause; empty where a cause before it has the same.

    The step separates the first cause from the second, and every other cause from the first. "undecided" gets the step
    of the likeliest cause.
    """
    known = {""}
    for cause in causes:
        likeliest = ranked[0] if cause.cause == Cause.UNDECIDED and ranked else cause
        rival = next((other.cause for other in ranked if other is not likeliest), None)
        step = next_step(likeliest.cause, rival, case)
        yield "" if step in known else step
        known.add(step)


def _stands_out(ranked: Sequence[RankedCause]) -> bool:
    """Whether the first cause is likely enough, and far enough ahead of the second.

    Two causes of 0.8 and more may both be true: independent faults in one step.
    """
    first, second = [*(cause.confidence for cause in ranked[:2]), 0.0, 0.0][:2]
    return first >= 0.8 or (first >= 0.5 and first - second >= 0.15)


def _undecided(case: Case, ranked: Sequence[RankedCause]) -> RankedCause:
    """No cause stands out. That is a result, with the reason and with what was not tested."""
    first = ranked[0].confidence if ranked else 0.0
    return RankedCause(
        cause=Cause.UNDECIDED,
        confidence=round(max(first, 1 - first), 2),
        for_=(_why_undecided(ranked),),
        against=(),
        not_tested=tuple(_not_tested(case)),
        next="",
    )


def _why_undecided(ranked: Sequence[RankedCause]) -> str:
    if not ranked:
        return phrase("no fact speaks for any cause")
    first, *others = [
        phrase("{cause} ({confidence:.2f})", cause=cause_words(cause.cause), confidence=cause.confidence)
        for cause in ranked[:2]
    ]
    if not others:
        return phrase("{first}: too little speaks for it", first=first)
    return phrase("{first} and {second}: neither stands out", first=first, second=others[0])


def _not_tested(case: Case) -> Iterator[str]:
    incident = case.incident
    if not incident.replay.passes:
        yield phrase("the step again")
    if not incident.audited:
        yield phrase("weights, moments and batch before the step")
    if not incident.origin:
        yield phrase("from which operator the bad values came")
    # Collectives are not run alone.
    has_call = any(origin.kind is not OriginKind.COMMUNICATION for origin in incident.origin)
    if has_call and not incident.arbitrations:
        yield phrase("the suspect call on its own")
