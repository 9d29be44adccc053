"""Which loss scales no step was applied at since they went up."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_nanguard.megatron_api import optimizers
from megatron_nanguard.megatron_api.optimizers import ScalerTrackers
from megatron_nanguard.sentinel import RaisedScale
from tests.unit.one_rank import trainer


def followed(megatron: Any, window: int, hysteresis: int, steps: str) -> str:
    """Megatron's own scaler over some steps: ``.`` applied, ``x`` skipped. ``r`` where the scale counts as raised.

    The answer belongs to the moment of the vote, before the step is counted.
    """
    made = trainer(
        fp16=True,
        optimizer="adam",
        initial_loss_scale=8.0,
        min_loss_scale=0.01,
        loss_scale_window=window,
        hysteresis=hysteresis,
    )
    (scaler,), raised, seen = optimizers.scalers(made.optimizer), RaisedScale(), ""
    for step in steps:
        seen += "r" if raised.look(optimizers.scaler_trackers(made.optimizer)) else "-"
        scaler.update(step == "x")
    return seen


@pytest.mark.parametrize(
    ("window", "hysteresis", "steps", "seen"),
    [
        # Nothing was applied at the very first scale either.
        (3, 1, "....", "r--r"),
        # Raised by the second step; the fourth is the first at a scale that went down again.
        (2, 1, "..xx.", "r-r--"),
        # Of two overflows at the raised scale the first does not bring it down.
        (2, 2, "..xxx", "r-rr-"),
        # An overflow that is swallowed by the hysteresis is no raise, nor is what comes after it.
        (3, 2, ".xx.x", "r----"),
        # Raised after every step.
        (1, 1, "..x.x", "rrr-r"),
    ],
)
def test_a_scale_is_raised_until_a_step_is_applied_at_it(
    megatron: Any, window: int, hysteresis: int, steps: str, seen: str
) -> None:
    assert followed(megatron, window, hysteresis, steps) == seen


def test_one_raised_scale_of_several_is_enough() -> None:
    proven, raised = ScalerTrackers(5, 2, 2), ScalerTrackers(0, 2, 2)
    assert RaisedScale().look([proven, raised])
    assert not RaisedScale().look([proven, proven])


def test_of_scalers_in_place_of_others_nothing_went_before() -> None:
    proven, raised, swallowed = ScalerTrackers(5, 2, 2), ScalerTrackers(0, 2, 2), ScalerTrackers(0, 1, 2)
    followed = RaisedScale()
    assert followed.look([raised])
    assert not followed.look([swallowed, proven])
    assert followed.look([raised, proven])
    assert followed.look([swallowed, proven])
    assert not followed.look([])


def test_a_scaler_that_counts_in_a_way_of_its_own_is_not_raised(megatron: Any) -> None:
    made = trainer(fp16=True, optimizer="adam", initial_loss_scale=8.0, min_loss_scale=0.01, loss_scale_window=3)
    (scaler,) = optimizers.scalers(made.optimizer)
    assert RaisedScale().look(optimizers.scaler_trackers(made.optimizer))
    scaler.state_dict = lambda: {"scale": scaler.scale}
    assert not RaisedScale().look(optimizers.scaler_trackers(made.optimizer))
    del scaler.state_dict, scaler.hysteresis
    assert not RaisedScale().look(optimizers.scaler_trackers(made.optimizer))


def test_without_a_dynamic_scale_there_is_none() -> None:
    assert not RaisedScale().look([])
