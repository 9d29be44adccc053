"""The state: weights, main parameters, moments or buffers that were bad before the step began."""

from __future__ import annotations

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import Kind

STATE = ("main_param", "exp_avg", "exp_avg_sq", "weight", "weight_only", "buffer")
WORDS = {
    "weight": phrase("model weight"),
    "weight_only": phrase("model weight, with a good main parameter,"),
    "main_param": phrase("main parameter"),
    "exp_avg": phrase("first moment"),
    "exp_avg_sq": phrase("second moment"),
    "buffer": phrase("buffer"),
}


def judge(case: Case, scales: Scales) -> None:
    """Look for bad state in the audit before the step, and for origins that are parameters or buffers."""
    findings = case.audit_of(*STATE)
    for finding in findings:
        values = {**vars(finding), "kind": WORDS[finding.kind]}
        fact = phrase("{kind} of {name} was {pattern} on rank {rank} before the step", **values)
        scales.speaks_for(DECISIVE, fact, "audit")
    for origin in case.external_origins("parameter", "buffer"):
        fact = phrase("the walk back ends at the state: {origin}", origin=case.name(origin))
        scales.speaks_for(DECISIVE, fact, "outside")
    if case.incident.kind is Kind.DEAD_STEP:
        scales.speaks_for(STRONG, phrase("the step before was applied though its gradients were not finite"))
    if any(losses.lowest == losses.highest == 0.0 for losses in case.incident.losses):
        scales.speaks_for(HINT, phrase("a loss of exactly 0, as weights give that are poisoned already"))
    if case.incident.replay.previous_batch == "bad":
        scales.speaks_for(HINT, phrase("the previous step's batch, finite then, is bad on this state"))
    if case.incident.replay.previous_batch == "finite":
        scales.speaks_against(STRONG, phrase("the previous step's batch is finite on this state"))
    if case.incident.audited and not findings:
        scales.speaks_against(DECISIVE, phrase("weights, main parameters, moments and buffers are finite"))
    if not case.incident.audited:
        scales.not_tested(phrase("whether weights and moments are finite"))
