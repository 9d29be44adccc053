"""The norm: every gradient is finite, the sum of their squares is not."""

from __future__ import annotations

import math

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.weighing import DECISIVE, STRONG, Scales
from megatron_nanguard.records.phrase import name_ranks, phrase
from megatron_nanguard.records.postmortem import Kind


def judge(case: Case, scales: Scales) -> None:
    """Distinguish an infinite norm of finite gradients from bad gradients."""
    if case.incident.kind is Kind.NORM_OVERFLOW:
        fact = phrase("every gradient is finite; the sum of their squares is beyond the range of float32")
        scales.speaks_for(DECISIVE, fact)
    elif case.incident.grad_norm is not None and math.isinf(case.incident.grad_norm):
        scales.speaks_for(STRONG, phrase("the gradient norm is Inf, not NaN"))
    bad = case.incident.ranks.bad_before or case.incident.ranks.bad_after_only
    if bad and case.incident.kind is not Kind.NORM_OVERFLOW:
        fact = phrase("gradients of {ranks} hold NaN or Inf themselves", ranks=name_ranks(bad))
        scales.speaks_against(DECISIVE, fact)
    if case.incident.origin:
        scales.speaks_against(STRONG, phrase("the walk back ends at a NaN or Inf that is no norm"))
