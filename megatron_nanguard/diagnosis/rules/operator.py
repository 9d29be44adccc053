"""The operator: a kernel or an autograd function that is wrong on every device."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, SLIGHT, STRONG, Scales
from megatron_nanguard.records.arbitration import Arbitration
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import Origin, RankedCause
from megatron_nanguard.records.phrase import Phrase, phrase
from megatron_nanguard.records.rank_words import name_ranks
from megatron_nanguard.records.trace import OriginKind

SEEN: Final[dict[str, Phrase]] = {
    "finite": phrase("finite values in, {pattern} out: {origin}"),
    "inside": phrase("values from {lowest:g} to {highest:g}, inside of its domain, and {pattern} out: {origin}"),
    "unseen": phrase("what went in was not seen, {pattern} out: {origin}"),
    "unrecorded": phrase("what went in was not recorded, {pattern} out: {origin}"),
}
"""How what came out is told, by what is known of what went in."""
WRITES = phrase("NaN is written by the code itself, as the argument {argument}: {origin}")
WROTE = phrase("NaN is written by the code of an autograd.Function, as the argument {argument}: {origin}, {function}")


def judge(evidence: Evidence) -> RankedCause | None:
    """Accuse an operator with finite inputs, and weigh what its call did elsewhere."""
    scales = Scales(Cause.OPERATOR)
    accused = [
        origin
        for origin in origin_facts.of_kind(evidence, OriginKind.OPERATOR, OriginKind.UNSEEN)
        if not origin_facts.is_narrow_overflow(origin)
    ]
    for origin in accused:
        _accuse(origin, evidence, scales)
    for arbitration in origin_facts.usable(evidence):
        _again(arbitration, scales)
    if accused and (ranks := origin_facts.alike(evidence)):
        scales.speaks_for(HINT, phrase("it fails alike on {ranks}", ranks=name_ranks(ranks)))
    if evidence.went_away():
        scales.speaks_against(STRONG, phrase("the same call was finite in the replay"))
    if accused and not evidence.arbitrations:
        scales.not_tested(phrase("the accused call on another device and in float64"))
    return scales.reading()


def _accuse(origin: Origin, evidence: Evidence, scales: Scales) -> None:
    if origin_facts.is_undefined_somewhere(origin):
        told = phrase("by its definition {operator} makes NaN or Inf of some finite values", operator=origin.operator)
        scales.speaks_against(HINT, told, "domain")
        return
    if (number := origin_facts.bad_number(origin)) is not None:
        words = WROTE if origin.function_line else WRITES
        told = words.format(
            argument=number.name, origin=origin_facts.named(origin, evidence), function=origin.function_line
        )
        scales.speaks_for(STRONG, told, "written")
    elif seen := _what_went_in(origin):
        lowest, highest = origin_facts.span(origin) or (0.0, 0.0)
        told = SEEN[seen].format(
            pattern=origin.pattern, origin=origin_facts.named(origin, evidence), lowest=lowest, highest=highest
        )
        scales.speaks_for(SLIGHT if seen == "unrecorded" else HINT, told, "accused")
    if origin.pattern == "inf" and origin_facts.is_small_in(origin):
        told = phrase("Inf of values of ordinary size: {origin}", origin=origin_facts.named(origin, evidence))
        scales.speaks_for(HINT, told, "small")
    if origin.phase == "backward" and origin_facts.has_finite_losses(evidence):
        scales.speaks_for(
            HINT,
            phrase(
                "only the backward is bad, every loss is finite: {origin}", origin=origin_facts.named(origin, evidence)
            ),
            "backward",
        )


def _what_went_in(origin: Origin) -> str:
    """What is known of it; empty where something bad went in, such as the Inf of a mask."""
    if origin.kind is not OriginKind.OPERATOR:
        return "unseen"
    if any(each.pattern != "finite" for each in origin.inputs):
        return ""
    if not origin.inputs:
        return "unrecorded"
    return "inside" if origin_facts.is_inside_domain(origin) else "finite"


def _again(arbitration: Arbitration, scales: Scales) -> None:
    call = origin_facts.tried(arbitration)
    if origin_facts.is_always_bad(arbitration):
        if origin_facts.reference(arbitration) == "finite" and not arbitration.out_of_range:
            told = phrase("{call} is bad {n} times of {n}, its reference finite", call=call, n=arbitration.repeats)
            scales.speaks_for(STRONG, told, "reference")
        if arbitration.peer == "bad":
            scales.speaks_for(STRONG, phrase("{call} is bad on another device as well", call=call), "peer")
    elif arbitration.repeats and not arbitration.repeats_bad:
        told = phrase("{call} is finite {n} times of {n}", call=call, n=arbitration.repeats)
        scales.speaks_against(STRONG, told, "repeat")
    if arbitration.peer == "finite":
        scales.speaks_against(DECISIVE, phrase("{call} is finite on another device", call=call), "peer")
    elif arbitration.peer != "bad":
        scales.not_tested(phrase("{call} on another device", call=call))
    if origin_facts.reference(arbitration) == "bad" or arbitration.out_of_range:
        told = phrase("a correct operator gives no finite value here either: {call}", call=call)
        scales.speaks_against(DECISIVE, told, "reference")
