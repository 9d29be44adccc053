"""A step from the call of the schedule to the decision."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from megatron_nanguard.replay.step_recorder import StepRecorder
from tests.unit.conftest import Log
from tests.unit.guarded_run.watched import Watched
from tests.unit.one_rank import ONES

Watch = Callable[..., Watched]


def test_without_a_training_log_steps_are_counted_from_1(watch: Watch) -> None:
    watched = watch()
    steps = []
    for _ in range(3):
        steps.append(watched.run().step.number)
        watched.guarded.step.close()
    assert steps == [1, 2, 3]


def test_a_pass_that_the_host_repeats_is_the_same_step_seen_afresh(watch: Watch) -> None:
    watched = watch()
    watched.run(before=lambda made: made.net.first.weight.main_grad.fill_(math.nan), inputs=[ONES, ONES])
    guarded = watched.run()
    assert guarded.step.number == 1
    assert len(guarded.step.losses.seen) == 1
    assert all(math.isfinite(norm) for bucket in guarded.step.before.taken() for norm in bucket.norms.tolist())


def test_only_bucket_groups_of_its_own_in_an_open_step_are_its_own(watch: Watch) -> None:
    watched, other = watch(), watch()
    (group,) = watched.trainer.ddp.bucket_groups
    assert not watched.guarded.step.holds(group)
    watched.run()
    assert watched.guarded.step.holds(group)
    assert not watched.guarded.step.holds(other.trainer.ddp.bucket_groups[0])
    watched.guarded.step.close()
    assert not watched.guarded.step.holds(group)


def test_close_forgets_what_would_be_judged_again(watch: Watch) -> None:
    guarded = watch().run()
    guarded.step.norms.append(math.nan)
    guarded.step.close()
    assert (guarded.step.is_open, guarded.step.rng, guarded.step.norms) == (False, None, [])


def test_a_step_that_cannot_be_recorded_loses_the_replay_alone(watch: Watch, log: Log) -> None:
    watched = watch()
    watched.guarded.step.recorder = StepRecorder(watched.guarded.chunks, watched.guarded.device)
    # The schedule gets no data iterator here, which the recorder does not know how to take.
    guarded = watched.run()
    assert guarded.step.recorder is None
    assert guarded.step.why_no_recorder == "the step cannot be recorded (recording the step: KeyError: 'data_iterator')"
    assert len(guarded.step.losses.seen) == 1
    assert log.messages == ["a fault of nanguard's own in recording the step; training goes on without it"]


def test_the_inputs_of_the_flags_are_those_of_the_step(watch: Watch) -> None:
    watched = watch(fp16=True, initial_loss_scale=1.0, min_loss_scale=1.0, optimizer="adam")
    guarded = watched.run()
    guarded.step.norms.append(2.0)
    seen = guarded.step.flag_inputs(watched.trainer.optimizer)
    assert [len(norms) for norms in seen.before] == [2]
    assert seen.after is not None
    assert (seen.dynamic_scale, list(seen.last_norms)) == (True, [2.0])
    assert seen.minimal_scale is not None
    assert bool(seen.minimal_scale)
    assert seen.loss is not None
    assert not bool(seen.loss)


def test_the_norms_of_a_replay_do_not_replace_those_of_the_step(watch: Watch) -> None:
    step = watch().run().step
    of_step = step.before
    with pytest.raises(RuntimeError, match="broken"), step.fresh_norms() as before:
        assert step.before is before
        assert not before.taken()
        raise RuntimeError("broken")
    assert step.before is of_step
    assert len(of_step.taken()) == 1
