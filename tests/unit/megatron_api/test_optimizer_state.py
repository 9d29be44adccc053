"""Main parameters and moments, with the model parameter that each belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_nanguard.megatron_api.optimizer_state import kept_by
from tests.unit.one_rank import ONES, trainer


@pytest.mark.parametrize(
    ("options", "distributed", "is_copy"),
    [({}, False, False), ({}, True, False), ({"bf16": True}, False, True), ({"bf16": True}, True, True)],
)
def test_every_parameter_is_found_with_its_moments(
    megatron: Any, options: dict[str, Any], distributed: bool, is_copy: bool
) -> None:
    made = trainer(ddp={"use_distributed_optimizer": distributed}, optimizer="adam", **options)
    made.forward_backward((ONES,))
    made.step()
    kept = {id(one.param): one for one in kept_by(made.optimizer)}
    assert set(kept) == {id(param) for param in made.net.parameters()}
    for param in made.net.parameters():
        one = kept[id(param)]
        assert one.is_copy is is_copy
        assert one.main.numel() == param.numel()
        assert {"exp_avg", "exp_avg_sq"} <= set(one.state)


def test_places_are_numbered(megatron: Any) -> None:
    places = [one.place for one in kept_by(trainer().optimizer)]
    assert places == ["optimizer 0, group 0, parameter 0", "optimizer 0, group 0, parameter 1"]


def test_nothing_is_known_without_an_optimizer() -> None:
    assert kept_by(None) == []
