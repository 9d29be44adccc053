"""Optimizer and chunks, together."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_nanguard.patch_points.get_megatron_optimizer import POINT
from tests.unit.one_rank import trainer
from tests.unit.patch_points.calls import applied


@pytest.mark.parametrize("by_name", [False, True])
def test_the_factory_ties_its_optimizer_to_the_chunks(megatron: Any, by_name: bool) -> None:
    import megatron.core.optimizer

    made, seen = trainer(), []
    config = made.optimizer.config
    with applied(POINT, lambda *told: seen.append(told)):
        factory = megatron.core.optimizer.get_megatron_optimizer
        got = factory(config=config, model_chunks=[made.ddp]) if by_name else factory(config, [made.ddp])
    assert seen == [(got, [made.ddp])]
