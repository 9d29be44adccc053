"""Loss scalers and step counts, out of one optimizer and into another."""

from __future__ import annotations

from typing import Any

from megatron_nanguard.megatron_api.optimizer_numbers import numbers, put_numbers_back
from megatron_nanguard.megatron_api.optimizer_state import inner_optimizers
from tests.unit.one_rank import ONES, trainer

FP16 = {"optimizer": "adam", "fp16": True, "initial_loss_scale": 64.0, "loss_scale_window": 2, "min_loss_scale": 1.0}


def test_a_scaler_goes_on_from_where_it_was(megatron: Any) -> None:
    made, fresh = trainer(**FP16), trainer(**FP16)
    for _ in range(3):
        made.forward_backward((ONES,))
        made.step()
    kept = numbers(made.optimizer)
    # Doubled after the second step, and one good step counted since.
    assert kept == {"scaler 0, scale": 128.0, "scaler 0, growth_tracker": 1.0, "scaler 0, hysteresis_tracker": 2.0}

    put_numbers_back(fresh.optimizer, kept)

    assert numbers(fresh.optimizer) == kept
    for one in (made, fresh):
        one.forward_backward((ONES,))
        one.step()
    assert numbers(fresh.optimizer) == numbers(made.optimizer)
    assert numbers(fresh.optimizer)["scaler 0, scale"] == 256.0


def test_steps_that_a_group_counts_are_kept_as_the_integers_they_were(megatron: Any) -> None:
    made, fresh = trainer(), trainer()
    ((_, inner),) = inner_optimizers(made.optimizer)
    inner.param_groups[0]["step"] = 7
    put_numbers_back(fresh.optimizer, numbers(made.optimizer))
    ((_, other),) = inner_optimizers(fresh.optimizer)
    assert (other.param_groups[0]["step"], type(other.param_groups[0]["step"])) == (7, int)


def test_a_scaler_that_nothing_was_kept_of_stays_as_it_is(megatron: Any) -> None:
    fresh = trainer(**FP16)
    put_numbers_back(fresh.optimizer, {})
    assert numbers(fresh.optimizer)["scaler 0, scale"] == 64.0


def test_without_an_optimizer_there_is_nothing(megatron: Any) -> None:
    assert numbers(None) == {}
    put_numbers_back(None, {"scaler 0, scale": 2.0})


def test_fp32_has_no_numbers(megatron: Any) -> None:
    assert numbers(trainer().optimizer) == {}
