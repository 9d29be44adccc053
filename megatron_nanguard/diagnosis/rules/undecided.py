"""No cause stands out: said as a result, with what would change it."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.records.causes import Cause, cause_words
from megatron_nanguard.records.incident import RankedCause
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.trace import OriginKind

LIKELY = 0.5
SETTLED = 0.8
"""Two causes that are both as sure as this may both be true: independent faults in one step."""
CLEAR_LEAD = 0.15

NO_FACT = phrase("no fact speaks for any cause")
NEITHER = phrase("{first} and {second}: neither stands out")
ALONE = phrase("{first}: too little speaks for it")


def judge(evidence: Evidence, ranked: Sequence[RankedCause]) -> RankedCause | None:
    """Step back when the first is unlikely, or hardly ahead of the second.

    Args:
        evidence: the incident.
        ranked: the causes, most likely first.
    Returns:
        None where one stands out.
    """
    first = ranked[0].confidence if ranked else 0.0
    second = ranked[1].confidence if len(ranked) > 1 else 0.0
    if first >= SETTLED or (first >= LIKELY and first - second >= CLEAR_LEAD):
        return None
    return RankedCause(
        cause=Cause.UNDECIDED,
        confidence=round(max(first, 1 - first), 2),
        for_=_reasons(ranked),
        against=(),
        not_tested=_not_tested(evidence),
        next="",
    )


def _reasons(ranked: Sequence[RankedCause]) -> tuple[str, ...]:
    if not ranked:
        return (NO_FACT,)
    first, *others = [
        phrase("{cause} ({confidence:.2f})", cause=cause_words(cause.cause), confidence=cause.confidence)
        for cause in ranked[:2]
    ]
    return (NEITHER.format(first=first, second=others[0]) if others else ALONE.format(first=first),)


def _has_call(evidence: Evidence) -> bool:
    """Collectives are not run alone."""
    return any(origin.kind is not OriginKind.COMMUNICATION for origin in evidence.origins)


def _not_tested(evidence: Evidence) -> tuple[str, ...]:
    missing = {
        phrase("the step again"): not evidence.passes,
        phrase("weights, moments and batch before the step"): not evidence.audited,
        phrase("from which operator the bad values came"): not evidence.origins,
        phrase("the accused call on its own"): _has_call(evidence) and not evidence.arbitrations,
    }
    return tuple(what for what, is_missing in missing.items() if is_missing)
