"""No cause stands out: said as a result, with what would change it."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.records.incident import Cause

LIKELY = 0.5
SETTLED = 0.8
"""Two causes that are both as sure as this may both be true: independent faults in one step."""
CLEAR_LEAD = 0.15


def judge(evidence: Evidence, ranked: Sequence[Cause]) -> Cause | None:
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
    return Cause(
        cause="undecided",
        confidence=round(max(first, 1 - first), 2),
        for_=_reasons(ranked),
        against=(),
        not_tested=_not_tested(evidence),
        next="",
    )


def _reasons(ranked: Sequence[Cause]) -> tuple[str, ...]:
    if not ranked:
        return ("no fact speaks for any cause",)
    told = " and ".join(f"{cause.cause} ({cause.confidence:.2f})" for cause in ranked[:2])
    return (f"{told}: {'neither stands' if len(ranked) > 1 else 'it does not stand'} out",)


def _not_tested(evidence: Evidence) -> tuple[str, ...]:
    missing = {
        "the step again": not evidence.passes,
        "weights, moments and batch before the step": not evidence.audited,
        "the walk back to an origin": not evidence.origins,
        "the accused call on its own": bool(evidence.origins) and not evidence.arbitrations,
    }
    return tuple(what for what, is_missing in missing.items() if is_missing)
