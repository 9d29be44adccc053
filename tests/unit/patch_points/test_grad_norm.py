"""The norm the host computes."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

from megatron_nanguard.patch_points.grad_norm import CLIP_GRAD_NORM, GET_GRAD_NORM
from megatron_nanguard.patching.engine import Engine
from tests.unit.one_rank import trainer
from tests.unit.patch_points.calls import applied

# gradients 5, 5 / 6, 6 and 3, 7: 25 + 25 + 36 + 36 + 9 + 49
NORM = math.sqrt(180.0)


def test_the_norm_of_a_step_is_seen_and_given_on(megatron: Any) -> None:
    made = trainer()
    made.forward_backward()
    seen: list[tuple[Any, float]] = []
    with applied(GET_GRAD_NORM, lambda optimizer, norm: seen.append((optimizer, float(norm)))):
        _, norm = made.step()
    assert float(norm) == pytest.approx(NORM)
    assert seen[-1] == (made.optimizer, pytest.approx(NORM))


def test_clipping_one_leaf_shows_the_norm_that_it_clips_by(megatron: Any) -> None:
    made = trainer()
    made.forward_backward()
    (leaf,) = made.optimizer.chained_optimizers
    leaf.prepare_grads()
    seen: list[tuple[Any, float]] = []
    with applied(CLIP_GRAD_NORM, lambda optimizer, norm: seen.append((optimizer, float(norm)))):
        assert float(leaf.clip_grad_norm(1.0)) == pytest.approx(NORM)
    assert seen == [(leaf, pytest.approx(NORM))]


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("megatron.core.optimizer.layer_wise_optimizer", "LayerWiseDistributedOptimizer"),
        ("megatron.core.models.mimo.optimizer", "MimoOptimizer"),
    ],
)
def test_the_norm_of_an_optimizer_with_a_method_of_its_own_is_seen(megatron: Any, module: str, kind: str) -> None:
    owner = getattr(importlib.import_module(module), kind)
    theirs = vars(owner)["get_grad_norm"]
    engine = Engine((GET_GRAD_NORM,), lambda name: None, lambda: (0, 19))
    engine.install()
    assert engine.heal() == []
    assert vars(owner)["get_grad_norm"].__nanguard_point__ == "get_grad_norm"
    assert engine.remove() == []
    assert vars(owner)["get_grad_norm"] is theirs
