"""A rank's post-mortem before it has heard of the others."""

from __future__ import annotations

import importlib.metadata
import math
import os
from collections.abc import Callable
from typing import Any

import torch

from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident.alarm import Alarm
from megatron_nanguard.incident.rank_evidence import NOTHING, collect
from megatron_nanguard.incident.rank_file import NO_RNG, first_postmortem
from megatron_nanguard.records.json.record_file import from_json, to_json
from megatron_nanguard.records.postmortem import Flags, Kind, Postmortem, ScalerState
from megatron_nanguard.sentinel.vote_flags import FP32_MAX, Flag
from megatron_nanguard.settings import Settings
from tests.unit.guarded_run.watched import Watched
from tests.unit.one_rank import Trainer

Watch = Callable[..., Watched]
BUCKET_NOTE = "one norm per bucket was taken (--nanguard-norms bucket): parameters are named only where counted"


def alarm(optimizer: Any, *flags: Flag) -> Alarm:
    return Alarm(tuple(int(flag in flags) for flag in Flag), optimizer, Voters((0,), None))


def plant(made: Trainer) -> None:
    made.net.first.weight.main_grad[0, 1] = math.nan


def test_the_signal_holds_what_this_rank_knows(watch: Watch) -> None:
    watched = watch(clip_grad=1.0)
    guarded = watched.run(before=plant)
    seen = collect(guarded, FP32_MAX)
    written = first_postmortem(guarded, alarm(guarded.optimizer, Flag.LOCAL), seen, "run-1", "abort", None)
    assert (written.run_id, written.step, written.phase, written.policy) == ("run-1", 1, "signal", "abort")
    assert written.kind is Kind.GRADIENT_BEFORE_REDUCTION
    assert (written.coordinates.rank, written.sizes.world, written.pid) == (0, 1, os.getpid())
    assert written.local is seen.local
    assert written.reduced is seen.reduced
    assert written.flags == Flags(local=True, reduced=True, loss=False, own_fault=False, dead_step=False)
    assert (written.ranks, written.groups, written.infected_groups) == (None, (), ())
    assert (written.grad_norm, written.clip_coefficient, written.loss_scale) == (None, None, None)
    assert guarded.step.rng is not None
    assert written.rng == guarded.step.rng.digests()
    assert written.versions["torch"] == importlib.metadata.version("torch")
    assert written.notes == ()
    back = from_json(Postmortem, to_json(written))
    assert back.local.by_layer == {"first": 1}


def test_a_dead_step_has_the_norm_of_the_step_before(watch: Watch) -> None:
    guarded = watch(clip_grad=2.0).run()
    guarded.step.norms = [3.0, torch.tensor([math.inf])]
    written = first_postmortem(guarded, alarm(guarded.optimizer, Flag.DEAD_STEP), NOTHING, "run-1", "abort", None)
    assert (written.grad_norm, written.clip_coefficient) == (math.inf, 0.0)
    assert written.flags.dead_step
    assert written.notes == ("the step before this one was applied although its gradient norm was not finite",)


def test_a_fault_of_the_guard_and_a_bucket_norm_are_noted(watch: Watch) -> None:
    guarded = watch(Settings(on=True, norms="bucket")).run()
    guarded.step.close()
    written = first_postmortem(guarded, alarm(guarded.optimizer), NOTHING, "run-1", "skip", "names: KeyError: 3")
    assert written.notes == ("a fault of the guard's own on this rank: names: KeyError: 3", BUCKET_NOTE)
    assert written.flags.own_fault
    assert written.rng == NO_RNG


def test_the_loss_scale_is_written(watch: Watch) -> None:
    watched = watch(fp16=True, initial_loss_scale=8.0, min_loss_scale=1.0, optimizer="adam")
    guarded = watched.run()
    written = first_postmortem(guarded, alarm(guarded.optimizer), NOTHING, "run-1", "abort", None)
    assert written.loss_scale == 8.0


def test_the_loss_scaler_before_the_step_is_written(watch: Watch) -> None:
    guarded = watch(fp16=True, initial_loss_scale=8.0, min_loss_scale=1.0, optimizer="adam").run()
    guarded.tally.judge(True, False, False, True)
    assert written_by(guarded, Flag.RAISED_SCALE).scaler == ScalerState(
        in_search=True, just_raised=False, skips_in_a_row=0
    )
    guarded.tally.judge(False, False, False, False)
    guarded.tally.judge(True, False, False, True)
    assert written_by(guarded, Flag.RAISED_SCALE).scaler == ScalerState(
        in_search=False, just_raised=True, skips_in_a_row=0
    )
    guarded.tally.judge(True, False, False, False)
    assert written_by(guarded).scaler == ScalerState(in_search=False, just_raised=False, skips_in_a_row=1)


def test_without_a_dynamic_scale_there_is_no_scaler(watch: Watch) -> None:
    assert written_by(watch().run()).scaler is None


def written_by(guarded: GuardedOptimizer, *flags: Flag) -> Postmortem:
    return first_postmortem(guarded, alarm(guarded.optimizer, *flags), NOTHING, "run-1", "abort", None)
