"""Numerics: the mathematics of these values leaves the range or the domain, on any device."""

from __future__ import annotations

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.arbitration import Arbitration
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import Origin, RankedCause
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.trace import OriginKind

OUTSIDE = phrase("values outside of its domain: {origin}")
NOT_ALONE = phrase("the sum in float64: collectives are not run alone")
MEASURED_OUTSIDE = phrase("values from {lowest:g} to {highest:g}, outside of its domain: {origin}")


def judge(evidence: Evidence) -> RankedCause | None:
    """Look for overflow, for values outside the domain, and for a reference that is bad as well."""
    scales = Scales(Cause.NUMERICS, prior=-1.0)
    for origin in origin_facts.of_kind(evidence, OriginKind.OPERATOR, OriginKind.COMMUNICATION):
        _out_of_range(origin, evidence, scales)
    for arbitration in origin_facts.usable(evidence):
        _again(arbitration, scales)
    _sinking_scale(evidence, scales)
    if evidence.overflow_mode == "saturation":
        scales.speaks_for(HINT, phrase("devices in saturation mode turn overflow into the largest number"))
    if evidence.went_away():
        scales.speaks_against(STRONG, phrase("the same arithmetic was finite in the replay"))
    if evidence.origins and not evidence.arbitrations:
        is_called = any(origin.kind is not OriginKind.COMMUNICATION for origin in evidence.origins)
        scales.not_tested(phrase("the accused call in float64") if is_called else NOT_ALONE)
    return scales.reading()


def _out_of_range(origin: Origin, evidence: Evidence, scales: Scales) -> None:
    name = origin_facts.base_name(origin.operator)
    if origin_facts.is_sum_overflow(origin):
        told = phrase(
            "what every member sent was finite, the sum is Inf: {origin}", origin=origin_facts.named(origin, evidence)
        )
        scales.speaks_for(STRONG + HINT, told, "sum")
    elif origin_facts.is_narrow_overflow(origin):
        assert origin.facts is not None
        told = phrase(
            "finite values leave the range of {dtype}: {origin}",
            dtype=origin.facts.dtype,
            origin=origin_facts.named(origin, evidence),
        )
        scales.speaks_for(STRONG, told, "range")
    elif origin_facts.is_undefined_somewhere(origin):
        scales.speaks_for(STRONG, _outside(origin, evidence), "domain")
    elif origin.pattern == "inf":
        # Where the loss is finite all the same, something was meant to keep the overflow out.
        expected = origin_facts.is_large_in(origin) or (
            name in origin_facts.EXPONENTIAL and not origin_facts.has_finite_losses(evidence)
        )
        told = phrase("overflow to Inf: {origin}", origin=origin_facts.named(origin, evidence))
        scales.speaks_for(STRONG if expected else HINT, told, "overflow")


def _outside(origin: Origin, evidence: Evidence) -> str:
    """Only of a function of one argument the values tell by themselves that they are outside."""
    ends, name = origin_facts.span(origin), origin_facts.named(origin, evidence)
    if ends is None or origin_facts.base_name(origin.operator) not in origin_facts.DOMAINS:
        return OUTSIDE.format(origin=name)
    return MEASURED_OUTSIDE.format(lowest=ends[0], highest=ends[1], origin=name)


def _again(arbitration: Arbitration, scales: Scales) -> None:
    call = origin_facts.tried(arbitration)
    if arbitration.out_of_range:
        told = phrase("{call} is finite in float64 and does not fit the type of its output", call=call)
        scales.speaks_for(STRONG, told, "reference")
    elif origin_facts.reference(arbitration) == "bad":
        told = phrase("{call} is not finite in higher precision either", call=call)
        scales.speaks_for(STRONG, told, "reference")
    elif origin_facts.reference(arbitration) == "finite":
        told = phrase("{call} is finite in higher precision, and fits", call=call)
        scales.speaks_against(DECISIVE, told, "reference")
    if arbitration.peer == "finite":
        scales.speaks_against(DECISIVE, phrase("{call} is finite on another device", call=call), "peer")


def _sinking_scale(evidence: Evidence, scales: Scales) -> None:
    scaler = evidence.scaler
    # Any fault is met there again: it tells something only of values too large, or where nothing else is known.
    is_overflow = not evidence.origins or any(map(origin_facts.is_narrow_overflow, evidence.origins))
    if scaler is not None and scaler.lower_scale == "bad" and is_overflow:
        told = phrase("overflow also far below the loss scale of {scale:g}", scale=scaler.scale)
        scales.speaks_for(STRONG, told)
    if scaler is not None and scaler.lower_scale == "finite":
        told = phrase("finite far below the loss scale of {scale:g}: the scale is too large", scale=scaler.scale)
        scales.speaks_against(STRONG, told)
    if scaler is not None and scaler.skips_in_a_row and not scaler.in_search:
        told = phrase("{number} skips in a row before this one: the scale is sinking", number=scaler.skips_in_a_row)
        scales.speaks_for(HINT, told)
