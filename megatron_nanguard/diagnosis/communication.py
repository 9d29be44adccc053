"""The transport: finite when it was sent, bad when it arrived."""

from __future__ import annotations

from megatron_nanguard.diagnosis import facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.incident import Cause, Origin
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.records.trace import OriginKind


def judge(evidence: Evidence) -> Cause | None:
    """Accuse what happened between sender and receiver."""
    scales = Scales("communication", prior=-1.5)
    spoiled = list(facts.of_kind(evidence, OriginKind.COMMUNICATION))
    for origin in spoiled:
        _accuse(origin, scales)
    if evidence.kind is Kind.GRADIENT_AFTER_REDUCTION and not evidence.origins:
        scales.speaks_for(STRONG, "every local gradient was finite, the reduced ones are not")
    if spoiled and evidence.came_back("plain") == "no":
        scales.speaks_for(HINT, "the transfer was finite in the replay")
    if spoiled:
        scales.not_tested("digests of what was sent against what arrived")
    others = [origin for origin in evidence.origins if origin.kind is not OriginKind.COMMUNICATION]
    if others:
        scales.speaks_against(DECISIVE, f"bad before it was sent: {facts.named(others[0])}")
    return scales.reading()


def _accuse(origin: Origin, scales: Scales) -> None:
    if facts.is_sum_overflow(origin):
        told = f"finite at every sender, Inf on arrival: {facts.named(origin)}, {origin.output}"
        scales.speaks_for(HINT, told, "sum")
        scales.speaks_against(HINT, "a sum of finite values that are too large gives the same")
    else:
        told = f"finite at every sender, {origin.pattern} on arrival: {facts.named(origin)}, {origin.output}"
        scales.speaks_for(DECISIVE, told, "spoiled")
