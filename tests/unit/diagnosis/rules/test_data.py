"""The batch is convicted by what it holds, and acquitted by the state."""

from __future__ import annotations

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.incident import BatchSpot
from megatron_nanguard.records.step.replay import AuditFinding
from megatron_nanguard.records.trace import OriginKind
from tests.unit.diagnosis.factories import case, origin

judge = RULES[Cause.DATA].reading

BATCH = AuditFinding("batch", "micro-batch 2, key weights", "nan", 5)


def test_a_nan_in_the_batch_is_named_with_its_key() -> None:
    assert judge(case(audited=True, audit=(BATCH,), previous_batch="finite")) == RankedCause(
        cause="data",
        confidence=0.98,
        for_=(
            "micro-batch 2, key weights on rank 5 holds nan as it was fetched",
            "the previous step's batch is finite on the same state",
        ),
        against=(),
        not_tested=(),
        next="",
    )


def test_a_clean_batch_and_a_bad_state_acquit_it() -> None:
    found = judge(
        case(
            audited=True,
            audit=(AuditFinding("weight", "w", "nan", 0),),
            origin=(origin(kind=OriginKind.OUTSIDE, operator="tensor (4,) float32"),),
            previous_batch="bad",
        )
    )

    assert found is not None
    assert found.confidence < 0.02
    assert found.against == (
        "the batch as it was fetched holds no NaN or Inf",
        "the previous step's batch, finite then, is bad on this state too",
        "the state was bad before the batch was read",
    )


def test_a_batch_that_changed_later_is_not_the_data() -> None:
    outside = origin(kind=OriginKind.OUTSIDE, operator="tensor (4,) float32")
    as_fetched = judge(case(origin=(outside,)))
    changed = judge(case(origin=(outside,), changed_after_fetch=(BatchSpot(5, 2),)))

    assert as_fetched is not None and changed is not None
    assert changed.confidence < as_fetched.confidence / 2


def test_an_operator_is_no_matter_of_the_data() -> None:
    assert judge(case(audited=True, origin=(origin(),))) is None
