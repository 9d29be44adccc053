"""The norm the host computes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from megatron_nanguard.patch_points.grad_norm import CLIP_GRAD_NORM, GET_GRAD_NORM
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
