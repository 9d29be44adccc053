"""Leaves, scalers and stubs of Megatron's own optimizers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from megatron_nanguard.megatron_api import optimizers
from tests.unit.one_rank import Trainer, trainer


def fp16(**changes: Any) -> Trainer:
    options = {"fp16": True, "optimizer": "adam", "initial_loss_scale": 8.0, "min_loss_scale": 2.0, "hysteresis": 1}
    return trainer(**{**options, **changes})


def test_a_chain_has_its_leaves_in_order(megatron: Any) -> None:
    from megatron.core.optimizer.optimizer import ChainedOptimizer

    first, second = trainer().optimizer, trainer().optimizer
    leaves = [*first.chained_optimizers, *second.chained_optimizers]
    assert optimizers.leaves(ChainedOptimizer([first, second])) == leaves
    assert optimizers.leaves(leaves[0]) == [leaves[0]]


def test_the_active_optimizers_of_mimo_are_its_leaves() -> None:
    inner = SimpleNamespace()
    assert optimizers.leaves(SimpleNamespace(_active_optimizers=[inner])) == [inner]


def test_a_chain_without_leaves_is_a_stub(megatron: Any) -> None:
    from megatron.core.optimizer.optimizer import ChainedOptimizer

    assert optimizers.is_stub(ChainedOptimizer([]))
    assert not optimizers.is_stub(trainer().optimizer)


def test_chunks_are_those_the_optimizer_was_built_for(megatron: Any) -> None:
    made = trainer(bf16=True, optimizer="adam", use_distributed_optimizer=True, ddp={"use_distributed_optimizer": True})
    assert optimizers.model_chunks(made.optimizer) == [made.ddp]
    (leaf,) = made.optimizer.chained_optimizers
    assert optimizers.model_chunks(leaf) == [made.ddp]


def test_fp32_has_no_scaler(megatron: Any) -> None:
    made = trainer()
    assert optimizers.scalers(made.optimizer) == []
    assert not optimizers.is_dynamic(made.optimizer)
    assert optimizers.scale_is_minimal(made.optimizer) is None
    assert optimizers.loss_scale(made.optimizer) is None


def test_bf16_without_a_scale_has_no_scaler(megatron: Any) -> None:
    assert optimizers.scalers(trainer(bf16=True, optimizer="adam").optimizer) == []


def test_a_constant_scale_is_not_dynamic(megatron: Any) -> None:
    made = fp16(loss_scale=4.0)
    assert not optimizers.is_dynamic(made.optimizer)
    assert optimizers.scale_is_minimal(made.optimizer) is None
    assert optimizers.loss_scale(made.optimizer) == 4.0


def test_a_dynamic_scale_is_minimal_when_it_cannot_back_off(megatron: Any) -> None:
    made = fp16()
    (scaler,) = optimizers.scalers(made.optimizer)
    seen = []
    for _ in range(3):
        minimal = optimizers.scale_is_minimal(made.optimizer)
        assert minimal is not None
        seen.append((optimizers.loss_scale(made.optimizer), bool(minimal)))
        scaler.update(True)
    assert optimizers.is_dynamic(made.optimizer)
    assert seen == [(8.0, False), (4.0, False), (2.0, True)]


def test_a_back_off_undoes_the_update_of_the_step_first(megatron: Any) -> None:
    made = fp16(loss_scale_window=1)
    (scaler,) = optimizers.scalers(made.optimizer)
    kept = optimizers.ScalerStates(made.optimizer)
    scaler.update(False)
    assert optimizers.loss_scale(made.optimizer) == 16.0
    kept.back_off()
    assert optimizers.loss_scale(made.optimizer) == 4.0


@pytest.mark.parametrize(("clip_grad", "threshold"), [(0.0, 0.0), (1.5, 1.5)])
def test_the_threshold_is_that_of_the_options(megatron: Any, clip_grad: float, threshold: float) -> None:
    assert optimizers.clip_threshold(trainer(clip_grad=clip_grad).optimizer) == threshold


def test_an_unknown_optimizer_does_not_clip() -> None:
    assert optimizers.clip_threshold(None) == 0.0


def test_what_a_dynamic_scale_counts(megatron: Any) -> None:
    made = fp16(loss_scale_window=2, hysteresis=2)
    (scaler,) = optimizers.scalers(made.optimizer)
    seen = []
    for overflow in (True, False, False, True):
        scaler.update(overflow)
        (counted,) = optimizers.scaler_trackers(made.optimizer)
        seen.append((counted.growth, counted.hysteresis_left, counted.hysteresis))
    assert seen == [(0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 2)]
    assert optimizers.scale_window(made.optimizer) == 2


def test_a_fixed_scale_counts_nothing(megatron: Any) -> None:
    made = fp16(loss_scale=4.0)
    assert optimizers.scaler_trackers(made.optimizer) == []
    assert optimizers.scale_window(made.optimizer) == 0
