"""The loss scale: an overflow that is the dynamic scaler at work, and no fault."""

from __future__ import annotations

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.diagnosis.evidence import Evidence, ScalerFacts
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import RankedCause
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.trace import OriginKind


def judge(evidence: Evidence) -> RankedCause | None:
    """Only with a dynamic scale: does the overflow vanish with a lower one?"""
    scales = Scales(Cause.LOSS_SCALER)
    for origin in origin_facts.of_kind(evidence, OriginKind.SCALER):
        scales.speaks_for(
            STRONG + HINT,
            phrase("scaled values overflow, and nothing else: {origin}", origin=origin_facts.named(origin, evidence)),
            "scaler",
        )
    if evidence.scaler is not None:
        _weigh(evidence.scaler, scales)
    faults = [origin for origin in evidence.origins if origin.kind is not OriginKind.SCALER and origin.pattern != "inf"]
    if faults:
        told = phrase("a NaN that no scale explains: {origin}", origin=origin_facts.named(faults[0], evidence))
        scales.speaks_against(DECISIVE, told)
    return scales.reading()


def _weigh(scaler: ScalerFacts, scales: Scales) -> None:
    if scaler.lower_scale == "finite":
        scales.speaks_for(
            DECISIVE, phrase("the step is finite far below the loss scale of {scale:g}", scale=scaler.scale)
        )
    if scaler.lower_scale == "bad":
        scales.speaks_against(
            DECISIVE, phrase("the step is bad far below the loss scale of {scale:g} too", scale=scaler.scale)
        )
    if scaler.lower_scale == "not_tried":
        scales.not_tested(phrase("the step at a lower loss scale"))
    if scaler.in_search:
        scales.speaks_for(STRONG, phrase("no step was applied yet: the scale is still being searched for"))
    if scaler.just_raised:
        scales.speaks_for(STRONG, phrase("the loss scale had just been raised to {scale:g}", scale=scaler.scale))
    if scaler.skips_in_a_row and not scaler.in_search:
        scales.speaks_against(HINT, phrase("{number} steps before were skipped already", number=scaler.skips_in_a_row))
