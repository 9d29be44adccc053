"""The decision point and its veto, and the step of a rank that may have nothing to train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatron_nanguard.patch_points.decision import OPTIMIZER_STEP, PREPARE_GRADS
from tests.unit.one_rank import trainer
from tests.unit.patch_points.calls import applied


def test_the_chain_decides_before_its_leaves_and_megatrons_answer_is_returned(megatron: Any) -> None:
    made = trainer()
    made.forward_backward()
    asked: list[Any] = []

    def decide(prepare: Callable[[], bool], optimizer: Any) -> bool:
        asked.append(optimizer)
        return prepare()

    with applied(PREPARE_GRADS, decide):
        success, _ = made.step()
    assert success
    assert asked == [made.optimizer, *made.optimizer.chained_optimizers]
    # lr 0.1 on gradients 5, 5 / 6, 6 and 3, 7
    assert made.weights() == [0.5, 1.5, 2.4000000953674316, 3.4000000953674316, 4.699999809265137, 5.300000190734863]


def test_true_is_a_skip_and_no_weight_moves(megatron: Any) -> None:
    made = trainer()
    made.forward_backward()
    with applied(PREPARE_GRADS, lambda prepare, optimizer: True):
        assert made.step() == (False, None)
    assert made.weights() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_the_handlers_result_is_the_steps_result(megatron: Any) -> None:
    made = trainer()
    made.forward_backward()
    seen: list[Any] = []

    def step(wrapped: Any, optimizer: Any) -> Any:
        seen.append(optimizer)
        return (*wrapped()[:2], 7)

    with applied(OPTIMIZER_STEP, step):
        success, _, num_zeros = made.optimizer.step()
    assert (success, num_zeros) == (True, 7)
    assert seen == [made.optimizer]
