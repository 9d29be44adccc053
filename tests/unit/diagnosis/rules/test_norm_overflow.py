"""An infinite norm of finite gradients."""

from __future__ import annotations

import math

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.postmortem import Kind, RankSets
from tests.unit.diagnosis.factories import case, origin

judge = RULES[Cause.NORM_OVERFLOW].reading


def test_finite_gradients_with_an_infinite_norm() -> None:
    assert judge(case(kind=Kind.NORM_OVERFLOW, grad_norm=math.inf, ranks=RankSets((0, 1), (), ()))) == RankedCause(
        cause="norm_overflow",
        confidence=0.92,
        for_=("every gradient is finite; the sum of their squares is beyond the range of float32",),
        against=(),
        not_tested=(),
        next="",
    )


def test_a_nan_norm_is_none() -> None:
    assert judge(case(grad_norm=math.nan)) is None


def test_bad_elements_explain_an_infinite_norm_better() -> None:
    found = judge(case(grad_norm=math.inf, ranks=RankSets((5,), (), ()), origin=(origin(),)))

    assert found is not None
    assert found.confidence < 0.01
    assert found.against[0] == "gradients of rank 5 hold NaN or Inf themselves"
