"""Finite when sent, bad on arrival."""

from __future__ import annotations

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.records.step.replay import ReplayPass
from megatron_nanguard.records.trace import OriginKind
from tests.unit.diagnosis.factories import case, origin

judge = RULES[Cause.COMMUNICATION].reading

RECEIVED = origin(kind=OriginKind.COMMUNICATION, operator="recv_", output="no. 2 of rank 1 to rank 5", ranks=(5,))


def test_a_bad_receive_from_a_finite_sender() -> None:
    assert judge(case(origin=(RECEIVED,), passes=(ReplayPass("plain", "no"),))) == RankedCause(
        cause="communication",
        confidence=0.97,
        for_=(
            "finite at every sender, nan on arrival: recv_ in decoder.layers.3.mlp, no. 2 of rank 1 to rank 5",
            "the transfer was finite in the replay",
        ),
        against=(),
        not_tested=("digests of what was sent against what arrived",),
        next="",
    )


def test_gradients_that_went_bad_in_the_reduction_without_a_trace() -> None:
    found = judge(case(kind=Kind.GRADIENT_AFTER_REDUCTION))

    assert found is not None
    assert found.for_ == ("every local gradient was finite, the reduced ones are not",)


def test_an_infinite_sum_is_rather_the_numbers() -> None:
    summed = origin(kind=OriginKind.COMMUNICATION, operator="allreduce_", pattern="inf", ranks=(4, 5))
    found = judge(case(origin=(summed,)))

    assert found is not None
    assert found.confidence < 0.2
    assert found.against == ("a sum of finite values that are too large gives the same",)


def test_what_was_bad_before_it_was_sent_is_not_the_transport() -> None:
    assert judge(case(origin=(origin(),))) is None
