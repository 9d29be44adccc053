"""Empty denominators, masked rows and the branch that is not picked."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.diagnosis.rules import RULES
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.incident import BatchSpot, MicrobatchLosses
from megatron_nanguard.records.step.replay import ReplayPass
from tests.unit.diagnosis.factories import NAN, case, origin

judge = RULES[Cause.LOSS_OR_MASK].reading

FINITE = (MicrobatchLosses(2, 2, 1.0, 1.5, ()),)


def confidence(cause: RankedCause | None) -> float:
    assert cause is not None
    return cause.confidence


def test_a_micro_batch_without_a_valid_token_is_named_where_the_loss_went_bad() -> None:
    found = judge(case(origin=(origin(operator="div", module="", phase="forward"),), zero_tokens=(BatchSpot(5, 2),)))

    assert found is not None
    assert found.for_ == (
        "no valid token in micro-batch 2 of rank 5, where the loss went bad",
        "it began in the loss function: div",
    )
    assert found.confidence == 0.98


def test_an_empty_micro_batch_elsewhere_is_a_hint_only() -> None:
    on_the_spot = judge(case(origin=(origin(operator="mm"),), zero_tokens=(BatchSpot(5, 2),)))
    unknown = judge(case(zero_tokens=(BatchSpot(5, 2),)))

    assert confidence(on_the_spot) == 0.5
    assert confidence(unknown) == 0.73


def test_finalizing_divides_by_the_tokens_of_all_micro_batches() -> None:
    division = origin(operator="div", module="", phase="finalize", microbatch=None)

    assert confidence(judge(case(origin=(division,), zero_tokens=(BatchSpot(5, 0), BatchSpot(5, 1))))) > 0.9


def test_a_fully_masked_row_differs_from_a_softmax_that_is_bad_in_the_backward() -> None:
    forward = origin(operator="_softmax", phase="forward")

    assert confidence(judge(case(origin=(forward,)))) == 0.95
    assert judge(case(origin=(replace(forward, phase="backward"),))) is None


def test_an_overflow_in_the_branch_not_picked_needs_finite_losses() -> None:
    overflow = origin(operator="exp", pattern="inf", facts=replace(NAN, pattern="inf"), phase="forward")

    assert confidence(judge(case(origin=(overflow,), losses=FINITE))) == 0.88
    assert judge(case(origin=(overflow,))) is None


def test_a_clean_replay_speaks_against_the_loss() -> None:
    empty = case(zero_tokens=(BatchSpot(5, 2),))
    clean = case(zero_tokens=(BatchSpot(5, 2),), passes=(ReplayPass("plain", "no"),))

    assert confidence(judge(clean)) < confidence(judge(empty))


def test_a_kernel_in_a_layer_is_no_matter_of_the_loss() -> None:
    assert judge(case(origin=(origin(operator="FusedAttentionBackward"),), losses=FINITE)) is None
