"""Numerics: the mathematics of these values leaves the range or the domain, on any device."""

from __future__ import annotations

from megatron_nanguard.diagnosis import facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.arbitration import Arbitration
from megatron_nanguard.records.incident import Cause, Origin
from megatron_nanguard.records.trace import OriginKind


def judge(evidence: Evidence) -> Cause | None:
    """Look for overflow, for values outside the domain, and for a reference that is bad as well."""
    scales = Scales("numerics", prior=-1.0)
    for origin in facts.of_kind(evidence, OriginKind.OPERATOR, OriginKind.COMMUNICATION):
        _out_of_range(origin, evidence, scales)
    for arbitration in facts.usable(evidence):
        _again(arbitration, scales)
    _sinking_scale(evidence, scales)
    if evidence.overflow_mode == "saturation":
        scales.speaks_for(HINT, "devices in saturation mode turn overflow into the largest number")
    if evidence.came_back("plain") == "no":
        scales.speaks_against(STRONG, "the same arithmetic was finite in the replay")
    if evidence.origins and not evidence.arbitrations:
        scales.not_tested("the accused call in float64")
    return scales.reading()


def _out_of_range(origin: Origin, evidence: Evidence, scales: Scales) -> None:
    name = facts.base_name(origin.operator)
    if facts.is_sum_overflow(origin):
        told = f"what every member sent was finite, the sum is Inf: {facts.named(origin)}"
        scales.speaks_for(STRONG + HINT, told, "sum")
    elif facts.is_narrow_overflow(origin):
        assert origin.facts is not None
        told = f"finite values leave the range of {origin.facts.dtype}: {facts.named(origin)}"
        scales.speaks_for(STRONG, told, "range")
    elif name in facts.UNDEFINED_SOMEWHERE:
        scales.speaks_for(STRONG, f"values outside of its domain: {facts.named(origin)}", "domain")
    elif origin.pattern == "inf":
        # Where the loss is finite all the same, something was meant to keep the overflow out.
        expected = facts.is_large_in(origin) or (name in facts.EXPONENTIAL and not facts.has_finite_losses(evidence))
        scales.speaks_for(STRONG if expected else HINT, f"overflow to Inf: {facts.named(origin)}", "overflow")


def _again(arbitration: Arbitration, scales: Scales) -> None:
    call = facts.tried(arbitration)
    if arbitration.out_of_range:
        scales.speaks_for(STRONG, f"{call} is finite in float64 and does not fit the type of its output", "reference")
    elif facts.reference(arbitration) == "bad":
        scales.speaks_for(STRONG, f"{call} is not finite in higher precision either", "reference")
    elif facts.reference(arbitration) == "finite":
        scales.speaks_against(DECISIVE, f"{call} is finite in higher precision, and fits", "reference")
    if arbitration.peer == "finite":
        scales.speaks_against(DECISIVE, f"{call} is finite on another device", "peer")


def _sinking_scale(evidence: Evidence, scales: Scales) -> None:
    scaler = evidence.scaler
    # Any fault is met there again: it tells something only of values too large, or where nothing else is known.
    is_overflow = not evidence.origins or any(map(facts.is_narrow_overflow, evidence.origins))
    if scaler is not None and scaler.lower_scale == "bad" and is_overflow:
        scales.speaks_for(STRONG, f"overflow also far below the loss scale of {scaler.scale:g}")
    if scaler is not None and scaler.lower_scale == "finite":
        scales.speaks_against(STRONG, f"finite far below the loss scale of {scaler.scale:g}: the scale is too large")
    if scaler is not None and scaler.skips_in_a_row and not scaler.in_search:
        scales.speaks_for(HINT, f"{scaler.skips_in_a_row} skips in a row before this one: the scale is sinking")
