"""The dynamic scaler at work is told from a fault."""

from __future__ import annotations

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.postmortem import ScalerState
from megatron_nanguard.records.trace import OriginKind
from tests.unit.diagnosis.factories import case, origin

judge = RULES[Cause.LOSS_SCALER].reading

SCALED = origin(kind=OriginKind.SCALER, operator="_to_copy", pattern="inf", module="")


def test_a_step_that_is_finite_at_a_lower_scale() -> None:
    facts = case(origin=(SCALED,), scaler=ScalerState(False, True, 0), loss_scale=65536.0, lower_scale="finite")

    assert judge(facts) == RankedCause(
        cause="loss_scaler",
        confidence=0.98,
        for_=(
            "scaled values overflow, and nothing else: _to_copy",
            "the step is finite far below the loss scale of 65536",
            "the loss scale had just been raised to 65536",
        ),
        against=(),
        not_tested=(),
        next="",
    )


def test_a_step_that_is_bad_at_a_lower_scale_too() -> None:
    found = judge(case(origin=(SCALED,), scaler=ScalerState(False, False, 7), loss_scale=65536.0, lower_scale="bad"))

    assert found is not None
    assert found.confidence < 0.1
    assert found.against[-1] == "7 steps before were skipped already"


def test_a_nan_is_never_the_scale() -> None:
    found = judge(case(origin=(SCALED, origin()), scaler=ScalerState(False, False, 0), loss_scale=65536.0))

    assert found is not None
    assert found.confidence < 0.1
    assert found.against == (
        "a NaN that no scale explains: log in decoder.layers.3.mlp (rank 5, backward of micro-batch 2)",
    )


def test_without_a_scaler_nothing_is_said() -> None:
    assert judge(case(origin=(origin(),))) is None
