"""A fault of ours anywhere in a healthy step: the step is applied as without us, then the guard goes off for all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from megatron_nanguard.guard import steps as guard_steps
from megatron_nanguard.guarded_run import guarded_optimizers, guarded_step
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.guarded_optimizers import GuardedOptimizers
from megatron_nanguard.guarded_run.guarded_step import GuardedStep
from megatron_nanguard.health.health_watch import HealthWatch
from megatron_nanguard.megatron_api import host_program, optimizers
from megatron_nanguard.megatron_api.host_program import HostChecks
from megatron_nanguard.megatron_api.optimizers import ScalerStates
from megatron_nanguard.policy.scaler import ScalerTally
from megatron_nanguard.replay.data_iterators import Recording
from tests.unit.conftest import Log
from tests.unit.guarded import Install
from tests.unit.one_rank import ONES, Trainer, trainer

pytestmark = pytest.mark.timeout(60)

FP16 = {"fp16": True, "initial_loss_scale": 8.0, "min_loss_scale": 1.0, "optimizer": "adam"}
SITES: dict[str, tuple[Any, str]] = {
    "optimizer": (GuardedOptimizer, "__init__"),
    "recorder": (guarded_step, "StepRecorder"),
    "sorted chunks": (guarded_optimizers, "_have_common"),
    "chunks of the optimizer": (optimizers, "model_chunks"),
    "names": (GuardedOptimizer, "learn"),
    "opening": (GuardedStep, "open"),
    "passes": (GuardedOptimizer, "begin_passes"),
    "bucket": (GuardedOptimizer, "before_reduction"),
    "end of the passes": (GuardedOptimizer, "end_passes"),
    "flags": (GuardedStep, "flag_inputs"),
    "lookup": (GuardedOptimizers, "of_optimizer"),
    "end of the step": (GuardedStep, "close"),
    "tally": (ScalerTally, "judge"),
    "stub": (guard_steps, "is_stub"),
}
"""Functions of ours that run in a healthy step, or when the optimizer is built."""


def train(made: Trainer, times: int = 3) -> list[bool]:
    """Healthy steps; whether each was applied."""
    applied = []
    for number in range(times):
        made.forward_backward([ONES * (number + 1)])
        applied.append(made.step()[0])
    return applied


def failing_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises when it is called for the first time."""
    calls: list[None] = []

    def fail(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            raise LookupError("planted by the test")
        return function(*args, **kwargs)

    return fail


def stock_weights(options: dict[str, Any]) -> list[float]:
    """After the same steps without the guard."""
    made = trainer(**options)
    assert train(made) == [True] * 3
    return made.weights()


@pytest.mark.parametrize("options", [{}, FP16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("site", ["", *SITES])
def test_a_fault_in_a_healthy_step_never_hurts_training(
    megatron: Any, install: Install, monkeypatch: pytest.MonkeyPatch, log: Log, site: str, options: dict[str, Any]
) -> None:
    expected = stock_weights(options)
    found = install()
    if site:
        of, name = SITES[site]
        monkeypatch.setattr(of, name, failing_once(getattr(of, name)))

    made = trainer(**options)

    assert train(made) == [True] * 3
    assert made.weights() == expected, "bit for bit"
    is_used = site != "tally" or options == FP16
    has_failed = any("fault of nanguard's own" in message for message in log.messages)
    assert has_failed == (bool(site) and is_used)
    assert found.guard.active == (not has_failed)
    assert made.ddp.ddp_config.check_for_nan_in_grad == has_failed, "Megatron's own check is back on"


@pytest.mark.parametrize("site", ["", "before", "after"])
def test_a_fault_in_the_veto_leaves_the_step_skipped(
    megatron: Any, install: Install, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    name = {"before": "__init__", "after": "back_off"}.get(site)
    if name:
        monkeypatch.setattr(ScalerStates, name, failing_once(getattr(ScalerStates, name)))
    install(replay="off")
    made = trainer(**FP16)
    assert train(made, 1) == [True]
    before = made.weights()

    # The loss alone is bad: Megatron's own check finds no overflow, so that the veto is ours.
    made.forward_backward([ONES], loss=lambda output: (output.sum(), {"loss": output.detach().sum() * math.nan}))
    made.forward_backward([ONES * math.nan])

    assert made.step()[0] is False
    assert made.weights() == before


@pytest.mark.parametrize("of", [HostChecks, HealthWatch])
def test_a_fault_while_the_guard_goes_off_does_not_end_the_run(
    megatron: Any, install: Install, monkeypatch: pytest.MonkeyPatch, of: type
) -> None:
    name = "restore" if of is HostChecks else "close"
    found = install()
    made = trainer()
    monkeypatch.setattr(GuardedStep, "flag_inputs", failing_once(GuardedStep.flag_inputs))
    monkeypatch.setattr(of, name, failing_once(getattr(of, name)))
    assert train(made) == [True] * 3
    assert not found.guard.active


def test_a_check_of_the_host_that_cannot_be_told_stays_with_the_host(
    megatron: Any, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = install()
    monkeypatch.setattr(host_program, "is_nan_check", failing_once(host_program.is_nan_check))
    trainer()
    taken_over = found.hooks.guard.handlers["validate_result"]
    assert taken_over(torch.isnan) is False
    assert taken_over(torch.isnan) is True


class Stubborn:
    """A batch whose copy raises what nobody thought of."""

    def __copy__(self) -> Any:
        raise BufferError("planted by the test")


def test_a_batch_that_cannot_be_copied_is_handed_to_the_script_all_the_same() -> None:
    item = Stubborn()
    recording = Recording(iter([item]))
    assert next(recording.data_iterator) is item
    assert recording.why_not() == "a micro-batch cannot be copied: BufferError: planted by the test"
