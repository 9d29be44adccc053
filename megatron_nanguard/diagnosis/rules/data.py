"""The batch: a bad value in what was fed to the model."""

from __future__ import annotations

from megatron_nanguard.diagnosis import history, origin_facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import RankedCause
from megatron_nanguard.records.phrase import phrase


def judge(evidence: Evidence) -> RankedCause | None:
    """Convict the batch by what it holds, or by the previous batch that is finite on the same state."""
    scales = Scales(Cause.DATA)
    for finding in evidence.audit_of("batch"):
        scales.speaks_for(
            DECISIVE,
            phrase(
                "{name} on rank {rank} holds {pattern} as it was fetched",
                name=finding.name,
                rank=finding.rank,
                pattern=finding.pattern,
            ),
            "batch",
        )
    for origin in evidence.origins:
        if origin_facts.is_outside(origin, "tensor"):
            scales.speaks_for(
                STRONG,
                phrase(
                    "the walk back ends at a tensor from outside of the model: {origin}",
                    origin=origin_facts.named(origin, evidence),
                ),
                "outside",
            )
    if evidence.previous_batch == "finite":
        scales.speaks_for(STRONG, phrase("the previous step's batch is finite on the same state"))
    if evidence.zero_tokens:
        scales.speaks_for(HINT, phrase("a micro-batch without a token that counts is what set it off"))
    for earlier in history.again_on_other_devices(evidence):
        told = phrase("attempt {attempt} was bad in the same step, on other devices", attempt=earlier.attempt)
        scales.speaks_for(HINT, told, "again")
    _acquit(evidence, scales)
    return scales.reading()


def _acquit(evidence: Evidence, scales: Scales) -> None:
    if evidence.audited and not evidence.audit_of("batch"):
        scales.speaks_against(HINT, phrase("the batch as it was fetched holds no NaN or Inf"))
    if evidence.batch_changed:
        scales.speaks_against(STRONG, phrase("what the model read is not what was fetched"))
    if evidence.previous_batch == "bad":
        scales.speaks_against(STRONG, phrase("the previous step's batch, finite then, is bad on this state too"))
    if evidence.audit_of("weight", "weight_only", "main_param", "exp_avg", "exp_avg_sq", "buffer"):
        scales.speaks_against(STRONG, phrase("the state was bad before the batch was read"))
    if evidence.went_away():
        scales.speaks_against(STRONG, phrase("the same batch was finite in the replay"))
    if evidence.previous_batch == "not_tried":
        scales.not_tested(phrase("the previous step's batch on this state"))
