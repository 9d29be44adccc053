"""The norm: every gradient is finite, the sum of their squares is not."""

from __future__ import annotations

import math

from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, STRONG, Scales
from megatron_nanguard.diagnosis.wording import name_ranks
from megatron_nanguard.records.incident import Cause
from megatron_nanguard.records.postmortem import Kind


def judge(evidence: Evidence) -> Cause | None:
    """Tell an infinite norm of finite gradients from bad gradients."""
    scales = Scales("norm_overflow")
    if evidence.kind is Kind.NORM_OVERFLOW:
        scales.speaks_for(DECISIVE, "every gradient is finite; the sum of their squares is beyond the range of float32")
    elif evidence.grad_norm is not None and math.isinf(evidence.grad_norm):
        scales.speaks_for(STRONG, "the gradient norm is Inf, not NaN")
    bad = evidence.ranks.bad_before or evidence.ranks.bad_after_only
    if bad and evidence.kind is not Kind.NORM_OVERFLOW:
        scales.speaks_against(DECISIVE, f"gradients of {name_ranks(bad)} hold NaN or Inf themselves")
    if evidence.origins:
        scales.speaks_against(STRONG, "the walk back ends at a NaN or Inf that is no norm")
    return scales.reading()
