"""The state: weights, main parameters, moments or buffers that were bad before the step began."""

from __future__ import annotations

from megatron_nanguard.diagnosis import facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.incident import Cause
from megatron_nanguard.records.postmortem import Kind

STATE = ("main_param", "exp_avg", "exp_avg_sq", "weight", "weight_only", "buffer")
WORDS = {
    "weight": "model weight",
    "weight_only": "model weight, with a good main parameter,",
    "main_param": "main parameter",
    "exp_avg": "first moment",
    "exp_avg_sq": "second moment",
    "buffer": "buffer",
}


def judge(evidence: Evidence) -> Cause | None:
    """Convict the state by the audit, or by a walk that ends at a parameter."""
    scales = Scales("state_corruption")
    findings = evidence.audit_of(*STATE)
    for finding in findings:
        told = f"{WORDS[finding.kind]} of {finding.name} was {finding.pattern} on rank {finding.rank} before the step"
        scales.speaks_for(DECISIVE, told, "audit")
    for origin in evidence.origins:
        if facts.is_outside(origin, "parameter") or facts.is_outside(origin, "buffer"):
            scales.speaks_for(DECISIVE, f"the walk back ends at the state: {facts.named(origin)}", "outside")
    if evidence.kind is Kind.DEAD_STEP:
        scales.speaks_for(STRONG, "the step before was applied though its gradients were not finite")
    if any(losses.lowest == losses.highest == 0.0 for losses in evidence.losses):
        scales.speaks_for(HINT, "a loss of exactly 0, as weights give that are poisoned already")
    if evidence.previous_batch == "bad":
        scales.speaks_for(HINT, "the previous step's batch, finite then, is bad on this state")
    if evidence.previous_batch == "finite":
        scales.speaks_against(STRONG, "the previous step's batch is finite on this state")
    if evidence.audited and not findings:
        scales.speaks_against(DECISIVE, "weights, main parameters, moments and buffers are finite")
    if not evidence.audited:
        scales.not_tested("whether weights and moments are finite")
    return scales.reading()
