"""The training code around the model: clipping, recompute, finalizing, gathering, a copy that went wrong."""

from __future__ import annotations

import math

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import RankedCause
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.place_words import phase_words
from megatron_nanguard.records.trace import OriginKind

AROUND_THE_MODEL = ("finalize", "optimizer", "clip", "gather")


def judge(evidence: Evidence) -> RankedCause | None:
    """Look for faults in what Megatron does between and around forward and backward."""
    scales = Scales(Cause.FRAMEWORK, prior=-1.5)
    for origin in origin_facts.of_kind(evidence, OriginKind.OPERATOR):
        if origin.phase in AROUND_THE_MODEL:
            scales.speaks_for(
                STRONG,
                phrase(
                    "it began around the model, in {phase}: {origin}",
                    phase=phase_words(origin.phase),
                    origin=origin_facts.named(origin, evidence),
                ),
                "around",
            )
        # Under full recompute a fault of the forward is met there as well; then the loss is bad too.
        if origin.phase == "recompute" and origin_facts.has_finite_losses(evidence):
            scales.speaks_for(
                STRONG,
                phrase(
                    "the loss is finite, the recompute is not: {origin}", origin=origin_facts.named(origin, evidence)
                ),
                "recompute",
            )
    is_bad = evidence.ranks.bad_before or evidence.ranks.bad_after_only
    if evidence.clip_coefficient is not None and math.isnan(evidence.clip_coefficient) and not is_bad:
        scales.speaks_for(DECISIVE, phrase("the clip coefficient is NaN though every gradient is finite"))
    for finding in evidence.audit_of("weight_only"):
        told = phrase(
            "{name} is bad on rank {rank} only in the copy the model reads", name=finding.name, rank=finding.rank
        )
        scales.speaks_for(HINT, told, "copy")
    if evidence.went_away():
        scales.speaks_against(HINT, phrase("the same code was finite in the replay"))
    return scales.reading()
