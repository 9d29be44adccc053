"""Losses as the loss function returned them, whatever the schedule does to them afterwards."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.sentinel.losses import Losses
from tests.unit.one_rank import ONES, sum_of, trainer


def returned_by(losses: Losses, loss_func: Callable[..., Any], output: Tensor, **kwargs: Any) -> Any:
    """Run one micro-batch the way the schedule does."""
    forward_step = losses.listen(lambda data, model: (output, loss_func))
    given, listening = forward_step("data", "model")
    assert given is output
    return listening(output, **kwargs)


def test_a_loss_of_two_results_is_kept_without_a_token_count() -> None:
    losses, logged = Losses(), {"lm loss": 1}
    loss = torch.tensor(2.5)
    assert returned_by(losses, lambda output: (loss, logged), ONES) == (loss, logged)
    assert losses.read() == [(2.5, None)]


def test_a_loss_sum_of_three_results_is_read_per_token() -> None:
    losses = Losses()
    returned_by(losses, lambda output: (torch.tensor(12.0), torch.tensor(8, dtype=torch.int32), {}), ONES)
    assert losses.read() == [(1.5, 8)]


def test_no_tokens_leave_the_sum() -> None:
    losses = Losses()
    returned_by(losses, lambda output: (torch.tensor(3.0), torch.tensor(0), {}), ONES)
    assert losses.read() == [(3.0, 0)]


def test_what_the_schedule_divides_in_place_was_recorded_before() -> None:
    losses, loss, tokens = Losses(), torch.tensor([8.0]), torch.tensor([4])
    returned_by(losses, lambda output: (loss, tokens, {}), ONES)
    loss /= 16
    tokens += 4
    assert losses.read() == [(2.0, 4)]


def test_a_recorded_loss_holds_no_graph() -> None:
    losses, weight = Losses(), torch.tensor(3.0, requires_grad=True)
    returned_by(losses, lambda output: (weight * 2, {}), ONES)
    assert not losses.seen[0][0].requires_grad


def test_a_bf16_loss_is_kept_in_fp32() -> None:
    losses = Losses()
    returned_by(losses, lambda output: (torch.tensor(1.5, dtype=torch.bfloat16), {}), ONES)
    assert losses.seen[0][0].dtype == torch.float32


def test_collecting_what_is_no_loss_is_no_loss() -> None:
    losses = Losses()
    got = returned_by(losses, lambda output, non_loss_data: (torch.tensor(1.0), {}), ONES, non_loss_data=True)
    assert float(got[0]) == 1.0
    assert losses.read() == []


@pytest.mark.parametrize("returned", [torch.tensor(1.0), (torch.ones(3), {}), (1.0, {})])
def test_a_result_without_a_single_loss_is_passed_over(returned: Any) -> None:
    losses = Losses()
    assert returned_by(losses, lambda output: returned, ONES) is returned
    assert losses.read() == []


def test_a_partial_is_listened_to_as_well() -> None:
    def masked(mask: float, output: Tensor) -> tuple[Tensor, dict[str, Any]]:
        return output.sum() * mask, {}

    losses = Losses()
    returned_by(losses, functools.partial(masked, 0.5), 3 * ONES)
    assert losses.read() == [(3.0, None)]


def test_a_forward_step_keeps_its_name_and_an_unknown_result_passes() -> None:
    def forward_step(data: Any, model: Any) -> Tensor:
        return ONES

    listening = Losses().listen(forward_step)
    assert listening.__name__ == "forward_step"
    assert listening(None, None) is ONES


@pytest.mark.parametrize(("values", "is_bad"), [((1.0, 2.0), False), ((1.0, math.nan), True), ((math.inf, 1.0), True)])
def test_one_bad_loss_is_enough(values: tuple[float, ...], is_bad: bool) -> None:
    losses = Losses()
    for value in values:
        returned_by(losses, lambda output, value=value: (torch.tensor(value), {}), ONES)
    bad = losses.bad()
    assert bad is not None
    assert (bad.dtype, bad.shape, bool(bad)) == (torch.bool, (), is_bad)


def test_a_rank_without_a_loss_function_knows_nothing() -> None:
    assert Losses().bad() is None
    assert Losses().read() == []


def test_clear_forgets() -> None:
    losses = Losses()
    returned_by(losses, lambda output: (torch.tensor(math.nan), torch.tensor(1), {}), ONES)
    losses.clear()
    assert losses.bad() is None
    assert losses.read() == []


def test_losses_are_recorded_per_microbatch_before_the_schedule_divides_them(megatron: Any) -> None:
    losses = Losses()
    made = trainer()

    def forward_step(data: Any, model: Any) -> Any:
        return model(next(data)), sum_of

    made.forward_backward([ONES, 2 * ONES], forward_step_func=losses.listen(forward_step))
    # y = 5 * 3 + 6 * 7 = 57 for ones
    assert losses.read() == [(57.0, None), (114.0, None)]


def test_an_error_of_the_guard_does_not_reach_the_loss_function() -> None:
    def fail(microbatch: int, loss: torch.Tensor) -> None:
        raise RuntimeError("ours")

    shield = Shield()
    losses = Losses(fail, shield)
    _, loss_func = losses.listen(lambda: (None, lambda output: (output, {})))()

    assert loss_func(torch.tensor(2.0))[0].item() == 2.0
    assert shield.fault == "loss: RuntimeError: ours"
