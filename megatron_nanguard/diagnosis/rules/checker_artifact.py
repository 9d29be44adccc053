"""The checker: an alarm that no gradient, loss or weight stands behind."""

from __future__ import annotations

from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import RankedCause
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.records.rank_words import name_ranks


def judge(evidence: Evidence) -> RankedCause | None:
    """Doubt ourselves where nothing bad is found, or where a part of the guard failed."""
    scales = Scales(Cause.CHECKER_ARTIFACT, prior=-2.0)
    if evidence.own_faults:
        scales.speaks_for(
            STRONG, phrase("a part of the guard itself failed on {ranks}", ranks=name_ranks(evidence.own_faults))
        )
    bad = (*evidence.ranks.bad_before, *evidence.ranks.bad_after_only)
    is_about_values = evidence.kind in (Kind.GRADIENT_BEFORE_REDUCTION, Kind.GRADIENT_AFTER_REDUCTION, Kind.LOSS)
    if is_about_values and evidence.ranks.clean and not bad:
        scales.speaks_for(STRONG, phrase("no rank holds a bad gradient or loss"))
    if not bad and evidence.came_back("plain") == "no" and evidence.exact:
        scales.speaks_for(HINT, phrase("the replay is finite, and equal bit for bit"))
    if evidence.origins:
        scales.speaks_against(DECISIVE, phrase("a bad gradient or loss leads back to an origin"))
    if bad:
        scales.speaks_against(HINT, phrase("bad values on {ranks}", ranks=name_ranks(sorted(bad))))
    return scales.reading()
