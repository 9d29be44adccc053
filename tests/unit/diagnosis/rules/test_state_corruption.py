"""What was bad before the step began."""

from __future__ import annotations

import pytest

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.incident import MicrobatchLosses
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.records.step.replay import AuditFinding
from megatron_nanguard.records.trace import OriginKind
from tests.unit.diagnosis.factories import case, origin

judge = RULES[Cause.STATE_CORRUPTION].reading


def test_a_bad_weight_is_named_by_the_audit_and_by_the_walk() -> None:
    weight = origin(kind=OriginKind.OUTSIDE, operator="parameter w", module="", phase="load", microbatch=None)
    facts = case(audited=True, audit=(AuditFinding("weight", "w", "nan", 5),), origin=(weight,))

    assert judge(facts) == RankedCause(
        cause="state_corruption",
        confidence=0.98,
        for_=(
            "model weight of w was nan on rank 5 before the step",
            "the walk back ends at the state: parameter w",
        ),
        against=(),
        not_tested=(),
        next="",
    )


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        (AuditFinding("exp_avg_sq", "w", "negative", 1), "second moment of w was negative on rank 1 before the step"),
        (
            AuditFinding("weight_only", "w", "nan", 1),
            "model weight, with a good main parameter, of w was nan on rank 1 before the step",
        ),
        (AuditFinding("buffer", "b", "inf", 0), "buffer of b was inf on rank 0 before the step"),
    ],
)
def test_every_part_of_the_state_is_named(finding: AuditFinding, words: str) -> None:
    found = judge(case(audited=True, audit=(finding,)))

    assert found is not None
    assert (found.for_, found.confidence) == ((words,), 0.92)


def test_a_dead_step_and_a_loss_of_zero_point_to_poisoned_weights() -> None:
    found = judge(case(kind=Kind.DEAD_STEP, losses=(MicrobatchLosses(0, 1, 0.0, 0.0, ()),)))

    assert found is not None
    assert found.for_ == (
        "the step before was applied though its gradients were not finite",
        "a loss of exactly 0, as weights give that are poisoned already",
    )
    assert found.not_tested == ("whether weights and moments are finite",)


def test_a_finite_state_acquits_it() -> None:
    found = judge(case(kind=Kind.DEAD_STEP, audited=True, previous_batch="finite"))

    assert found is not None
    assert found.confidence < 0.01
    assert found.against == (
        "the previous step's batch is finite on this state",
        "weights, main parameters, moments and buffers are finite",
    )


def test_a_bad_batch_is_no_state() -> None:
    assert judge(case(audited=True, audit=(AuditFinding("batch", "b", "nan", 0),))) is None
