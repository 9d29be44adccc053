"""Numerics: the result leaves the range of its type, or the inputs the domain of the operator, on any device."""

from __future__ import annotations

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.suspect_call import name_call, reference_outcome
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.suspect_call import Arbitration
from megatron_nanguard.records.trace import OriginKind

NOT_ALONE = phrase("the sum in float64: collectives are not run alone")
MEASURED_OUTSIDE = phrase("values from {lowest:g} to {highest:g}, outside of its domain: {origin}")


def judge(case: Case, scales: Scales) -> None:
    """Look for overflow, for values outside the domain, and for a reference that is bad as well."""
    regions = filter(origin_facts.is_region, case.incident.origin)
    for origin in (*case.origins_of(OriginKind.OPERATOR, OriginKind.COMMUNICATION), *regions):
        _weigh_origin(origin, case, scales)
    for call in case.usable_calls:
        _weigh_call(call, scales)
    _weigh_loss_scale(case, scales)
    if case.saturates:
        scales.speaks_for(HINT, phrase("devices in saturation mode turn overflow into the largest number"))
    if case.went_away:
        scales.speaks_against(STRONG, phrase("the same arithmetic was finite in the replay"))
    if case.incident.origin and not case.incident.arbitrations:
        is_called = any(origin.kind is not OriginKind.COMMUNICATION for origin in case.incident.origin)
        scales.not_tested(phrase("the suspect call in float64") if is_called else NOT_ALONE)


def _weigh_origin(origin: Origin, case: Case, scales: Scales) -> None:
    name = origin_facts.base_name(origin.operator)
    if origin_facts.is_sum_overflow(origin):
        fact = phrase("what every member sent was finite, the sum is Inf: {origin}", origin=case.name(origin))
        scales.speaks_for(STRONG + HINT, fact, "sum")
    elif origin_facts.is_narrow_overflow(origin):
        assert origin.facts is not None
        fact = phrase(
            "finite values leave the range of {dtype}: {origin}",
            dtype=origin.facts.dtype,
            origin=case.name(origin),
        )
        scales.speaks_for(STRONG, fact, "range")
    elif origin_facts.may_be_undefined(origin):
        scales.speaks_for(STRONG, _outside_of_domain(origin, case), "domain")
    elif origin.pattern == "inf":
        # Where the loss is finite all the same, the code was meant to keep the overflow out.
        expected = origin_facts.has_huge_input(origin) or (
            name in origin_facts.EXPONENTIAL and not case.has_finite_losses
        )
        fact = phrase("overflow to Inf: {origin}", origin=case.name(origin))
        scales.speaks_for(STRONG if expected else HINT, fact, "overflow")
    elif origin_facts.is_region(origin) and origin_facts.has_huge_input(origin):
        largest = max(each.absmax or 0.0 for each in origin.inputs)
        fact = phrase("values up to {largest:.3g} went in: {origin}", largest=largest, origin=case.name(origin))
        scales.speaks_for(HINT, fact, "huge")


def _outside_of_domain(origin: Origin, case: Case) -> str:
    """The measured range is named only for functions of one argument, whose domain is an interval."""
    ends, name = origin_facts.input_range(origin), case.name(origin)
    if ends is None or origin_facts.base_name(origin.operator) not in origin_facts.DOMAINS:
        return phrase("values outside of its domain: {origin}", origin=name)
    return MEASURED_OUTSIDE.format(lowest=ends[0], highest=ends[1], origin=name)


def _weigh_call(call: Arbitration, scales: Scales) -> None:
    name = name_call(call)
    if call.out_of_range:
        fact = phrase("{call} is finite in float64 and does not fit the type of its output", call=name)
        scales.speaks_for(STRONG, fact, "reference")
    elif reference_outcome(call) == "bad":
        fact = phrase("{call} is not finite in higher precision either", call=name)
        scales.speaks_for(STRONG, fact, "reference")
    elif reference_outcome(call) == "finite":
        fact = phrase("{call} is finite in higher precision, and fits", call=name)
        scales.speaks_against(DECISIVE, fact, "reference")
    if call.peer == "finite":
        scales.speaks_against(DECISIVE, phrase("{call} is finite on another device", call=name), "peer")


def _weigh_loss_scale(case: Case, scales: Scales) -> None:
    """What the dynamic loss scale, and the replay far below it, say of the size of the values."""
    scaler, scale, lower = case.scaler, case.incident.loss_scale, case.incident.replay.lower_scale
    if scaler is None:
        return
    # Any fault comes back at a lower scale. That says something only of an overflow, or where no origin is known.
    is_overflow = not case.incident.origin or any(map(origin_facts.is_narrow_overflow, case.incident.origin))
    if lower == "bad" and is_overflow:
        scales.speaks_for(STRONG, phrase("overflow also far below the loss scale of {scale:g}", scale=scale))
    if lower == "finite":
        fact = phrase("finite far below the loss scale of {scale:g}: the scale is too large", scale=scale)
        scales.speaks_against(STRONG, fact)
    if scaler.skips_in_a_row and not scaler.in_search:
        fact = phrase("{number} skips in a row before this one: the scale is sinking", number=scaler.skips_in_a_row)
        scales.speaks_for(HINT, fact)
