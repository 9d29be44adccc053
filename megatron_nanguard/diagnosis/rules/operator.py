"""The operator: a kernel or an autograd function that is wrong on every device."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.suspect_call import depends_on_memory, is_always_bad, name_call, reference_outcome
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, SLIGHT, STRONG, Scales
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import Phrase, name_ranks, phrase
from megatron_nanguard.records.suspect_call import Arbitration
from megatron_nanguard.records.trace import OriginKind

SEEN: Final[dict[str, Phrase]] = {
    "finite": phrase("finite values in, {pattern} out: {origin}"),
    "inside": phrase("values from {lowest:g} to {highest:g}, inside of its domain, and {pattern} out: {origin}"),
    "unseen": phrase("what went in was not seen, {pattern} out: {origin}"),
    "partly": phrase("finite values in as far as they were seen, without {hidden}, {pattern} out: {origin}"),
    "unrecorded": phrase("what went in was not recorded, {pattern} out: {origin}"),
}
"""By what is known of the inputs."""
WITH_HIDDEN_INPUTS: Final = 0.45
"""Ceiling where nothing but the call itself speaks for it, and something went in that may explain it."""
WRITES = phrase("NaN is written by the code itself, as the argument {argument}: {origin}")
WROTE = phrase("NaN is written by the code of an autograd.Function, as the argument {argument}: {origin}, {function}")


def judge(case: Case, scales: Scales) -> None:
    """Look for operators that made bad values of finite inputs, and weigh what their calls did elsewhere."""
    suspects = [
        origin
        for origin in case.origins_of(OriginKind.OPERATOR, OriginKind.UNSEEN)
        if not origin_facts.is_narrow_overflow(origin)
    ]
    for origin in suspects:
        _weigh_origin(origin, case, scales)
    for call in case.usable_calls:
        _weigh_call(call, case, scales)
    if suspects and all(map(origin_facts.has_hidden_input, suspects)) and not _has_finite_reference(case):
        scales.ceiling = WITH_HIDDEN_INPUTS
        for origin in suspects:
            if origin.not_seen:
                scales.not_tested(phrase("what was in {names}", names=", ".join(origin.not_seen)))
    if suspects and (ranks := case.ranks_alike):
        scales.speaks_for(HINT, phrase("it fails alike on {ranks}", ranks=name_ranks(ranks)))
    if case.went_away:
        scales.speaks_against(STRONG, phrase("the same call was finite in the replay"))
    if suspects and not case.incident.arbitrations:
        scales.not_tested(phrase("the suspect call on another device and in float64"))


def _weigh_origin(origin: Origin, case: Case, scales: Scales) -> None:
    if origin_facts.may_be_undefined(origin):
        fact = phrase("by its definition {operator} makes NaN or Inf of some finite values", operator=origin.operator)
        scales.speaks_against(HINT, fact, "domain")
        return
    if (number := origin_facts.nan_argument(origin)) is not None:
        words = WROTE if origin.function_line else WRITES
        fact = words.format(argument=number.name, origin=case.name(origin), function=origin.function_line)
        scales.speaks_for(STRONG, fact, "written")
    elif seen := _what_went_in(origin):
        lowest, highest = origin_facts.input_range(origin) or (0.0, 0.0)
        fact = SEEN[seen].format(
            pattern=origin.pattern,
            origin=case.name(origin),
            lowest=lowest,
            highest=highest,
            hidden=", ".join(origin.not_seen),
        )
        scales.speaks_for(SLIGHT if seen in ("unrecorded", "partly") else HINT, fact, "inputs")
    if origin.pattern == "inf" and origin_facts.has_only_ordinary_inputs(origin):
        fact = phrase("Inf of values of ordinary size: {origin}", origin=case.name(origin))
        scales.speaks_for(HINT, fact, "small")
    if origin.phase == "backward" and case.has_finite_losses:
        fact = phrase("only the backward is bad, every loss is finite: {origin}", origin=case.name(origin))
        scales.speaks_for(HINT, fact, "backward")


def _what_went_in(origin: Origin) -> str:
    """What is known of the inputs; empty where one of them was bad, such as the Inf of a mask."""
    if origin.kind is not OriginKind.OPERATOR and not (origin_facts.is_region(origin) and origin.inputs):
        return "unseen"
    if any(each.pattern != "finite" for each in origin.inputs):
        return ""
    if origin.not_seen:
        return "partly"
    if not origin.inputs:
        return "unrecorded"
    return "inside" if origin_facts.is_inside_domain(origin) else "finite"


def _has_finite_reference(case: Case) -> bool:
    return any(reference_outcome(call) == "finite" and not call.out_of_range for call in case.usable_calls)


def _weigh_call(call: Arbitration, case: Case, scales: Scales) -> None:
    name = name_call(call)
    if is_always_bad(call):
        if reference_outcome(call) == "finite" and not call.out_of_range:
            fact = phrase("{call} is bad {n} times of {n}, its reference finite", call=name, n=call.repeats)
            scales.speaks_for(STRONG, fact, "reference")
        elif reference_outcome(call) == "not_tried" and _is_given_ordinary_values(call, case):
            fact = phrase("{call} is bad {n} times of {n} on finite inputs of ordinary size", call=name, n=call.repeats)
            scales.speaks_for(STRONG, fact, "reference")
        if call.peer == "bad":
            scales.speaks_for(STRONG, phrase("{call} is bad on another device as well", call=name), "peer")
    elif depends_on_memory(call):
        fact = phrase("{call} is finite where fresh memory is filled with zeros first", call=name)
        scales.speaks_against(STRONG, fact, "repeat")
    elif call.repeats and not call.repeats_bad:
        fact = phrase("{call} is finite {n} times of {n}", call=name, n=call.repeats)
        scales.speaks_against(STRONG, fact, "repeat")
    if call.peer == "finite":
        scales.speaks_against(DECISIVE, phrase("{call} is finite on another device", call=name), "peer")
    elif call.peer != "bad":
        scales.not_tested(phrase("{call} on another device", call=name))
    if reference_outcome(call) == "bad" or call.out_of_range:
        fact = phrase("a correct operator gives no finite value here either: {call}", call=name)
        scales.speaks_against(DECISIVE, fact, "reference")


def _is_given_ordinary_values(call: Arbitration, case: Case) -> bool:
    """Whether a region got nothing that could explain a bad result of a correct one."""
    origin = case.origin_of(call)
    if origin is None or not origin_facts.is_region(origin):
        return False
    return origin_facts.has_only_ordinary_arguments(origin)
