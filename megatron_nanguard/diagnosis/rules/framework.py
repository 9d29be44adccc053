"""The training code around the model: clipping, recompute, finalizing, gathering, copying."""

from __future__ import annotations

import math

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.trace import OriginKind, phase_words

AROUND_THE_MODEL = ("finalize", "optimizer", "clip", "gather")


def judge(case: Case, scales: Scales) -> None:
    """Look for bad values that began outside of the forward and backward of the model."""
    for origin in case.origins_of(OriginKind.OPERATOR):
        if origin.phase in AROUND_THE_MODEL:
            fact = phrase(
                "it began around the model, in {phase}: {origin}",
                phase=phase_words(origin.phase),
                origin=case.name(origin),
            )
            scales.speaks_for(STRONG, fact, "around")
        # Under full recompute a fault of the forward is met there as well; then the loss is bad too.
        if origin.phase == "recompute" and case.has_finite_losses:
            fact = phrase("the loss is finite, the recompute is not: {origin}", origin=case.name(origin))
            scales.speaks_for(STRONG, fact, "recompute")
    is_bad = case.incident.ranks.bad_before or case.incident.ranks.bad_after_only
    if case.incident.clip_coefficient is not None and math.isnan(case.incident.clip_coefficient) and not is_bad:
        scales.speaks_for(DECISIVE, phrase("the clip coefficient is NaN though every gradient is finite"))
    for finding in case.audit_of("weight_only"):
        fact = phrase("{name} is bad on rank {rank} only in the copy the model reads", **vars(finding))
        scales.speaks_for(HINT, fact, "copy")
    if case.went_away:
        scales.speaks_against(HINT, phrase("the same code was finite in the replay"))
