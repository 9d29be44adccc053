"""The operator: a kernel or an autograd function that is wrong on every device."""

from __future__ import annotations

from megatron_nanguard.diagnosis import facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.diagnosis.wording import name_ranks
from megatron_nanguard.records.arbitration import Arbitration
from megatron_nanguard.records.incident import Cause, Origin
from megatron_nanguard.records.trace import OriginKind


def judge(evidence: Evidence) -> Cause | None:
    """Accuse an operator with finite inputs, and weigh what its call did elsewhere."""
    scales = Scales("operator")
    accused = [
        origin
        for origin in facts.of_kind(evidence, OriginKind.OPERATOR, OriginKind.UNSEEN)
        if not facts.is_narrow_overflow(origin)
    ]
    for origin in accused:
        _accuse(origin, evidence, scales)
    for arbitration in facts.usable(evidence):
        _again(arbitration, scales)
    if accused and (ranks := facts.alike(evidence)):
        scales.speaks_for(HINT, f"it fails alike on {name_ranks(ranks)}")
    if evidence.came_back("plain") == "no":
        scales.speaks_against(STRONG, "the same call was finite in the replay")
    if accused and not evidence.arbitrations:
        scales.not_tested("the accused call on another device and in float64")
    return scales.reading()


def _accuse(origin: Origin, evidence: Evidence, scales: Scales) -> None:
    if facts.base_name(origin.operator) in facts.UNDEFINED_SOMEWHERE:
        told = f"by its definition {origin.operator} makes NaN or Inf of some finite values"
        scales.speaks_against(HINT, told, "domain")
        return
    seen = "finite values in" if origin.kind is OriginKind.OPERATOR else "what went in was not seen"
    scales.speaks_for(HINT, f"{seen}, {origin.pattern} out: {facts.named(origin)}", "accused")
    if origin.pattern == "inf" and facts.is_small_in(origin):
        scales.speaks_for(HINT, f"Inf of values of ordinary size: {facts.named(origin)}", "small")
    if origin.phase == "backward" and facts.has_finite_losses(evidence):
        scales.speaks_for(HINT, f"only the backward is bad, every loss is finite: {facts.named(origin)}", "backward")


def _again(arbitration: Arbitration, scales: Scales) -> None:
    call = facts.tried(arbitration)
    if facts.is_always_bad(arbitration):
        if facts.reference(arbitration) == "finite" and not arbitration.out_of_range:
            told = f"{call} is bad {arbitration.repeats} times of {arbitration.repeats}, its reference finite"
            scales.speaks_for(STRONG, told, "reference")
        if arbitration.peer == "bad":
            scales.speaks_for(STRONG, f"{call} is bad on another device as well", "peer")
    elif arbitration.repeats and not arbitration.repeats_bad:
        scales.speaks_against(
            STRONG, f"{call} is finite {arbitration.repeats} times of {arbitration.repeats}", "repeat"
        )
    if arbitration.peer == "finite":
        scales.speaks_against(DECISIVE, f"{call} is finite on another device", "peer")
    elif arbitration.peer != "bad":
        scales.not_tested(f"{call} on another device")
    if facts.reference(arbitration) == "bad" or arbitration.out_of_range:
        scales.speaks_against(DECISIVE, f"a correct operator gives no finite value here either: {call}", "reference")
