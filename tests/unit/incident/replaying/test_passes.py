"""One pass of a recorded step, on one rank of real Megatron."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from megatron_nanguard.coordination.store import own_client
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.incident.replaying.passes import PassAgreement, Passes, PassKind, PassObserver, RankPass
from megatron_nanguard.records.step.replay import ReplayPass
from megatron_nanguard.replay.in_place import DecisionPoint
from megatron_nanguard.tracing.tracer import Tracer
from tests.unit.capture.steps import guard_optimizer, run_step
from tests.unit.one_rank import ONES, Trainer, trainer

numbers = itertools.count(700)
BAD = ONES * math.nan


def passes_of(made: Trainer, inputs: tuple[torch.Tensor, ...], bad_ranks: frozenset[int] = frozenset()) -> Passes:
    """The passes of a step over these micro-batches that was recorded."""
    guarded = guard_optimizer(made, next(numbers))
    run_step(made, guarded, inputs)
    guarded.step.after.look()
    assert guarded.step.recorder is not None
    assert guarded.step.recorder.call is not None
    watchdog = Watchdog(own_client(f"passes {next(numbers)}"), 0, 1, 30.0, 0.0, lambda code: None)
    return Passes(guarded, guarded.step.recorder.call, Voters((0,), None), watchdog, bad_ranks)


def test_a_clean_step_comes_back_the_same(megatron: Any) -> None:
    passes = passes_of(trainer(), (ONES, ONES))
    of_step = passes.guarded.step.before
    point = DecisionPoint.take(passes.call)
    seen = passes.run(PassKind.PLAIN, point)
    assert (seen.came_back, seen.first_bad, seen.exactness.exact, seen.finite_agrees) == (False, None, True, True)
    assert passes.guarded.step.before is of_step
    assert passes.share("plain", seen) == [RankPass(False, True, None)]
    assert passes.agreement(seen) == PassAgreement(True, ())
    assert passes.outcomes == [ReplayPass("plain", "no")]
    assert point.put_back() == ()


def test_the_first_bad_micro_batch_is_found_and_the_fault_came_back(megatron: Any) -> None:
    passes = passes_of(trainer(ddp={"check_for_nan_in_grad": False}), (ONES, BAD, ONES), frozenset({0}))
    seen = passes.run(PassKind.PLAIN, DecisionPoint.take(passes.call))
    assert (seen.came_back, seen.first_bad) == (True, 1)
    passes.share("plain", seen)
    assert passes.outcomes == [ReplayPass("plain", "yes")]
    assert passes.share_trial(seen) == "bad"


def test_a_fault_on_another_rank_than_before_came_back_partly(megatron: Any) -> None:
    passes = passes_of(trainer(ddp={"check_for_nan_in_grad": False}), (BAD,), frozenset({0, 1}))
    passes.share("plain", passes.run(PassKind.PLAIN, DecisionPoint.take(passes.call)))
    assert passes.outcomes == [ReplayPass("plain", "partly")]


def test_a_tracer_reads_along_and_losses_alone_name_the_micro_batch(megatron: Any) -> None:
    made = trainer(ddp={"check_for_nan_in_grad": False})
    passes = passes_of(made, (ONES, BAD))
    names = {made.net: "", made.net.first: "first", made.net.second: "second"}
    params = {weight: name for name, weight in made.net.named_parameters()}
    tracer = Tracer([made.ddp], names, params, 0, 1)
    seen = passes.run(
        PassKind.TRACED, DecisionPoint.take(passes.call), PassObserver.tracing(tracer), where=", micro-batch 1"
    )
    assert (seen.came_back, seen.first_bad) == (True, 1)
    assert [stage.partition(":")[0] for stage in passes.stages] == ["traced, micro-batch 1"]
    assert tracer.summarize("tp0pp0dp0").origins != ()


def test_a_pass_under_changed_conditions_leaves_the_scale_as_it_was(megatron: Any) -> None:
    made = trainer(fp16=True, initial_loss_scale=8.0, min_loss_scale=1.0, optimizer="adam")
    passes = passes_of(made, (ONES,))
    scale = made.config.grad_scale_func
    seen = passes.run(PassKind.AT_LOWER_SCALE, DecisionPoint.take(passes.call))
    assert not seen.exactness.exact
    assert made.config.grad_scale_func is scale


def test_a_pass_that_fails_leaves_the_norms_of_the_step(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = passes_of(trainer(), (ONES,))
    of_step = passes.guarded.step.before

    def broken(*args: object) -> None:
        raise RuntimeError("broken")

    point = DecisionPoint.take(passes.call)
    monkeypatch.setattr(DecisionPoint, "compare", broken)
    with pytest.raises(RuntimeError, match="broken"):
        passes.run(PassKind.PLAIN, point)
    assert passes.guarded.step.before is of_step
