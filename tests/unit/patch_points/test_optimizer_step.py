"""The step of a rank that may have nothing to train."""

from __future__ import annotations

from typing import Any

from megatron_nanguard.patch_points.optimizer_step import POINT
from tests.unit.one_rank import trainer
from tests.unit.patch_points.calls import applied


def test_the_handlers_result_is_the_steps_result(megatron: Any) -> None:
    made = trainer()
    made.forward_backward()
    seen: list[Any] = []

    def step(wrapped: Any, optimizer: Any) -> Any:
        seen.append(optimizer)
        return (*wrapped()[:2], 7)

    with applied(POINT, step):
        success, _, num_zeros = made.optimizer.step()
    assert (success, num_zeros) == (True, 7)
    assert seen == [made.optimizer]
