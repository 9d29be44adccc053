"""The batch: a bad value in what was fed to the model."""

from __future__ import annotations

from megatron_nanguard.diagnosis import history
from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.phrase import phrase


def judge(case: Case, scales: Scales) -> None:
    """Look for bad values in the batch; a previous batch that is finite on the same state speaks for it too."""
    for finding in case.audit_of("batch"):
        fact = phrase("{name} on rank {rank} holds {pattern} as it was fetched", **vars(finding))
        scales.speaks_for(DECISIVE, fact, "batch")
    for origin in case.external_origins("tensor"):
        fact = phrase("the walk back ends at a tensor from outside of the model: {origin}", origin=case.name(origin))
        scales.speaks_for(STRONG, fact, "outside")
    if case.incident.replay.previous_batch == "finite":
        scales.speaks_for(STRONG, phrase("the previous step's batch is finite on the same state"))
    if case.incident.zero_tokens:
        scales.speaks_for(HINT, phrase("a micro-batch without a token that counts is what set it off"))
    for earlier in history.same_step_elsewhere(case):
        fact = phrase("attempt {attempt} was bad in the same step, on other devices", attempt=earlier.run_id)
        scales.speaks_for(HINT, fact, "again")
    _weigh_against(case, scales)


def _weigh_against(case: Case, scales: Scales) -> None:
    if case.incident.audited and not case.audit_of("batch"):
        scales.speaks_against(HINT, phrase("the batch as it was fetched holds no NaN or Inf"))
    if case.incident.changed_after_fetch:
        scales.speaks_against(STRONG, phrase("what the model read is not what was fetched"))
    if case.incident.replay.previous_batch == "bad":
        scales.speaks_against(STRONG, phrase("the previous step's batch, finite then, is bad on this state too"))
    if case.audit_of("weight", "weight_only", "main_param", "exp_avg", "exp_avg_sq", "buffer"):
        scales.speaks_against(STRONG, phrase("the state was bad before the batch was read"))
    if case.went_away:
        scales.speaks_against(STRONG, phrase("the same batch was finite in the replay"))
    if case.incident.replay.previous_batch == "not_tried":
        scales.not_tested(phrase("the previous step's batch on this state"))
