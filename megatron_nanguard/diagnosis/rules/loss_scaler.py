"""The loss scale: an overflow that is the dynamic scaler at work, and no fault."""

from __future__ import annotations

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import ScalerState
from megatron_nanguard.records.trace import OriginKind


def judge(case: Case, scales: Scales) -> None:
    """Look for an overflow that vanishes at a lower loss scale, where the scale is dynamic."""
    for origin in case.origins_of(OriginKind.SCALER):
        fact = phrase("scaled values overflow, and nothing else: {origin}", origin=case.name(origin))
        scales.speaks_for(STRONG + HINT, fact, "scaler")
    if case.scaler is not None:
        _weigh_lower_scale(case, scales)
        _weigh_state(case.scaler, case, scales)
    origins = case.incident.origin
    faults = [origin for origin in origins if origin.kind is not OriginKind.SCALER and origin.pattern != "inf"]
    if faults:
        scales.speaks_against(DECISIVE, phrase("a NaN that no scale explains: {origin}", origin=case.name(faults[0])))


def _weigh_lower_scale(case: Case, scales: Scales) -> None:
    """Weigh the replay of the step far below its scale."""
    scale, outcome = case.incident.loss_scale, case.incident.replay.lower_scale
    if outcome == "finite":
        fact = phrase("the step is finite far below the loss scale of {scale:g}", scale=scale)
        scales.speaks_for(DECISIVE, fact)
    elif outcome == "bad":
        fact = phrase("the step is bad far below the loss scale of {scale:g} too", scale=scale)
        scales.speaks_against(DECISIVE, fact)
    else:
        scales.not_tested(phrase("the step at a lower loss scale"))


def _weigh_state(scaler: ScalerState, case: Case, scales: Scales) -> None:
    if scaler.in_search:
        scales.speaks_for(STRONG, phrase("no step was applied yet: the scale is still being searched for"))
    if scaler.just_raised:
        fact = phrase("the loss scale had just been raised to {scale:g}", scale=case.incident.loss_scale)
        scales.speaks_for(STRONG, fact)
    if scaler.skips_in_a_row and not scaler.in_search:
        scales.speaks_against(HINT, phrase("{number} steps before were skipped already", number=scaler.skips_in_a_row))
