"""The chunks whose parameters are sorted into groups."""

from __future__ import annotations

from typing import Any

from megatron_nanguard.patch_points.get_param_groups import POINT
from tests.unit.one_rank import trainer
from tests.unit.patch_points.calls import applied


def test_the_optimizer_factory_shows_its_chunks(megatron: Any) -> None:
    seen: list[Any] = []
    with applied(POINT, seen.append):
        made = trainer()
    assert len(seen) >= 1
    assert all(list(chunks) == [made.ddp] for chunks in seen)


def test_chunks_given_by_name_are_seen_too(megatron: Any) -> None:
    import megatron.core.optimizer

    made, seen = trainer(), []
    with applied(POINT, seen.append):
        megatron.core.optimizer._get_param_groups(
            model_chunks=[made.ddp], config=made.optimizer.config, config_overrides=None
        )
    assert seen == [[made.ddp]]
