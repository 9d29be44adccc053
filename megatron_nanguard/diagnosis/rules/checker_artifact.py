"""Our own check: an alarm although no gradient, loss or weight is bad."""

from __future__ import annotations

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.phrase import name_ranks, phrase
from megatron_nanguard.records.postmortem import Kind


def judge(case: Case, scales: Scales) -> None:
    """Doubt the alarm where nothing bad is found, or where a part of the guard failed."""
    bad = (*case.incident.ranks.bad_before, *case.incident.ranks.bad_after_only)
    if case.incident.own_faults:
        fact = phrase("a part of the guard itself failed on {ranks}", ranks=name_ranks(case.incident.own_faults))
        # What failed may be a part that has no say in the alarm, such as an audit.
        scales.speaks_for(HINT if bad else STRONG, fact)
    is_about_values = case.incident.kind in (Kind.GRADIENT_BEFORE_REDUCTION, Kind.GRADIENT_AFTER_REDUCTION, Kind.LOSS)
    if is_about_values and case.incident.ranks.clean and not bad:
        scales.speaks_for(STRONG, phrase("no rank holds a bad gradient or loss"))
    if not bad and case.came_back("plain") == "no" and case.incident.replay.exact:
        scales.speaks_for(HINT, phrase("the replay is finite, and equal bit for bit"))
    if case.incident.origin:
        scales.speaks_against(DECISIVE, phrase("a bad gradient or loss leads back to an origin"))
    if bad:
        scales.speaks_against(HINT, phrase("bad values on {ranks}", ranks=name_ranks(sorted(bad))))
