"""Main parameters and moments, with the model parameter that each belongs to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megatron_nanguard.megatron_api.optimizer_state import optimizer_parameters, put_back
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
