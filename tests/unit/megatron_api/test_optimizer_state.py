"""Main parameters and moments, with the model parameter that each belongs to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megatron_nanguard.megatron_api.optimizer_state import (
    numbers,
    optimizer_parameters,
    put_back,
    put_numbers_back,
)
from tests.unit.one_rank import ONES, Trainer, trainer


def adam(distributed: bool, options: dict[str, Any]) -> Trainer:
    sharded = {"use_distributed_optimizer": distributed}
    return trainer(ddp=sharded, optimizer="adam", **sharded, **options)


@pytest.mark.parametrize(
    ("options", "distributed", "is_copy"),
    [({}, False, False), ({}, True, False), ({"bf16": True}, False, True), ({"bf16": True}, True, True)],
)
def test_every_parameter_is_found_with_its_moments(
    megatron: Any, options: dict[str, Any], distributed: bool, is_copy: bool
) -> None:
    made = adam(distributed, options)
    made.forward_backward((ONES,))
    made.step()
    kept = {id(one.param): one for one in optimizer_parameters(made.optimizer)}
    assert set(kept) == {id(param) for param in made.net.parameters()}
    for param in made.net.parameters():
        one = kept[id(param)]
        assert one.is_copy is is_copy
        assert one.main.numel() == param.numel()
        assert {"exp_avg", "exp_avg_sq"} <= set(one.state)


def test_places_are_numbered(megatron: Any) -> None:
    places = [one.place for one in optimizer_parameters(trainer().optimizer)]
    assert places == ["optimizer 0, group 0, parameter 0", "optimizer 0, group 0, parameter 1"]


def test_nothing_is_known_without_an_optimizer() -> None:
    assert optimizer_parameters(None) == []


def named(optimizer: Any) -> dict[str, torch.Tensor]:
    """What is kept, copied, as it is put back."""
    return {
        f"{one.place}/{name}": value.detach().clone()
        for one in optimizer_parameters(optimizer)
        for name, value in {"main": one.main, **one.state}.items()
    }


@pytest.mark.parametrize(("options", "distributed"), [({}, False), ({"bf16": True}, False), ({"bf16": True}, True)])
def test_values_are_put_back_where_state_is_and_where_the_first_step_would_make_it(
    megatron: Any, options: dict[str, Any], distributed: bool
) -> None:
    made, fresh = (adam(distributed, options) for _ in range(2))
    made.forward_backward((ONES,))
    made.step()
    kept = named(made.optimizer)
    made.forward_backward((ONES,))
    made.step()

    for one in (made, fresh):
        put_back(one.optimizer, kept)
        found = named(one.optimizer)
        assert found.keys() == kept.keys()
        assert all(torch.equal(found[name], kept[name]) for name in kept)


def test_without_an_optimizer_nothing_is_put_back() -> None:
    put_back(None, {"optimizer 0, group 0, parameter 0/main": torch.ones(1)})


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
    inner = made.optimizer.chained_optimizers[0].optimizer
    inner.param_groups[0]["step"] = 7
    put_numbers_back(fresh.optimizer, numbers(made.optimizer))
    other = fresh.optimizer.chained_optimizers[0].optimizer
    assert (other.param_groups[0]["step"], type(other.param_groups[0]["step"])) == (7, int)


def test_a_scaler_without_kept_numbers_is_left_unchanged(megatron: Any) -> None:
    fresh = trainer(**FP16)
    put_numbers_back(fresh.optimizer, {})
    assert numbers(fresh.optimizer)["scaler 0, scale"] == 64.0


def test_without_an_optimizer_there_is_nothing(megatron: Any) -> None:
    assert numbers(None) == {}
    put_numbers_back(None, {"scaler 0, scale": 2.0})


def test_fp32_has_no_numbers(megatron: Any) -> None:
    assert numbers(trainer().optimizer) == {}
