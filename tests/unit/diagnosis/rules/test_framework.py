"""What Megatron does around the model."""

from __future__ import annotations

import math

import pytest

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import MicrobatchLosses
from megatron_nanguard.records.postmortem import RankSets
from megatron_nanguard.records.step.replay import AuditFinding
from tests.unit.diagnosis.factories import case, origin

judge = RULES[Cause.FRAMEWORK].reading

FINITE = (MicrobatchLosses(2, 2, 1.0, 1.5, ()),)


@pytest.mark.parametrize("phase", ["finalize", "optimizer", "clip", "gather"])
def test_an_operator_around_the_model(phase: str) -> None:
    found = judge(case(origin=(origin(phase=phase, module="", microbatch=None),)))

    assert found is not None
    assert found.for_ == (f"it began around the model, in {phase}: log",)


def test_a_nan_coefficient_of_finite_gradients() -> None:
    found = judge(case(clip_coefficient=math.nan))

    assert found is not None and found.confidence == 0.92
    assert judge(case(clip_coefficient=math.nan, ranks=RankSets((5,), (), ()))) is None
    assert judge(case(clip_coefficient=0.5)) is None


def test_a_recompute_that_differs_from_its_forward_shows_in_a_finite_loss() -> None:
    recomputed = origin(phase="recompute")

    assert judge(case(origin=(recomputed,), losses=FINITE)) is not None
    assert judge(case(origin=(recomputed,))) is None


def test_a_copy_that_went_wrong() -> None:
    found = judge(case(audit=(AuditFinding("weight_only", "w", "nan", 3),)))

    assert found is not None and found.for_ == ("w is bad on rank 3 only in the copy the model reads",)


def test_an_operator_of_the_model_is_not_the_framework() -> None:
    assert judge(case(origin=(origin(),), losses=FINITE)) is None
