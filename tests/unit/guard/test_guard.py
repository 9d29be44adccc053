"""The guard on one rank of real Megatron: options, handshake, steps, incidents, off again."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_nanguard.guard import guard as guard_module
from megatron_nanguard.guard import step_decisions
from megatron_nanguard.guarded_run import guarded_run, run_handshake
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.guarded_step import GuardedStep
from megatron_nanguard.health.health_watch import HealthWatch
from megatron_nanguard.patch_points import POINTS
from megatron_nanguard.patching.point import PointState, Target
from megatron_nanguard.postmortem.loading import load_incident
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.settings import Settings
from tests.unit.conftest import Log
from tests.unit.guarded import Install
from tests.unit.one_rank import ONES, Trainer, trainer

WEIGHTS = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes with which the process would have been left."""
    codes: list[int] = []

    def leave() -> None:
        codes.append(65)
        raise SystemExit(65)

    monkeypatch.setattr(guard_module.actions, "abort", leave)
    monkeypatch.setattr(guard_module, "leave_now", codes.append)
    return codes


def step(made: Trainer, *inputs: torch.Tensor) -> bool:
    """One training step; whether it was applied."""
    made.forward_backward(inputs or (ONES,))
    applied, _ = made.step()
    return applied


def nan_in(made: Trainer) -> torch.Tensor:
    """A micro-batch that makes everything NaN."""
    return ONES * math.nan


# ---------------------------------------------------------------------- start


def test_a_trainer_without_a_command_line_is_set_by_the_environment(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = install(meet=False)
    found.guard.options.settings = None
    monkeypatch.setenv("NANGUARD", "1")
    monkeypatch.setenv("NANGUARD_DIR", str(tmp_path / "elsewhere"))
    found.meet()
    assert found.guard.active
    assert found.guard.options.settings == Settings(on=True, dir=str(tmp_path / "elsewhere"))


def test_a_bad_variable_ends_a_trainer_without_a_command_line(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = install(meet=False)
    found.guard.options.settings = None
    monkeypatch.setenv("NANGUARD_NORMS", "all")
    with pytest.raises(SystemExit) as caught:
        found.meet()
    assert caught.value.code == "nanguard: NANGUARD_NORMS: 'all' is not one of param, bucket"


def test_without_the_flag_nothing_is_guarded(install: Install, tmp_path: Path) -> None:
    found = install(on=False)
    made = trainer(ddp={"check_for_nan_in_grad": False})
    assert step(made, nan_in(made))
    assert found.counts() == (0, 0, 0)
    assert list(tmp_path.iterdir()) == []


def test_every_patch_point_has_a_handler_and_every_handler_a_point(install: Install) -> None:
    assert set(install().guard.handlers) == {point.name for point in POINTS}


def test_before_the_handshake_the_handlers_give_what_the_host_would_get(install: Install) -> None:
    handlers = install(meet=False).guard.handlers
    assert handlers["forward_backward"](None, {"model": []}) == {"model": []}
    assert handlers["prepare_grads"](lambda: True, None) is True
    assert handlers["optimizer_step"](lambda: (True, 1.0, 0), None) == (True, 1.0, 0)
    assert handlers["validate_result"](torch.isnan) is False
    assert handlers["start_grad_sync"](None, False) is None


def test_megatrons_own_check_is_off_while_the_guard_is_on(install: Install) -> None:
    found = install()
    made = trainer()
    assert made.ddp.ddp_config.check_for_nan_in_grad is False
    found.hooks.remove()
    assert made.ddp.ddp_config.check_for_nan_in_grad is True


def test_a_healthy_run_is_guarded_in_silence(install: Install, tmp_path: Path) -> None:
    found, made = install(), trainer()
    assert [step(made) for _ in range(3)] == [True, True, True]
    assert found.counts() == (3, 0, 0)
    (run,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in run.iterdir()) == ["fingerprint.json", "param_map_tp0pp0dp0.json"]


def test_the_hardware_is_watched_until_the_next_meeting_or_the_end(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[HealthWatch] = []
    monkeypatch.setattr(HealthWatch, "close", lambda watch: closed.append(watch))
    found = install()
    trainer()
    assert closed == []
    found.meet()
    assert len(closed) == 1
    trainer()
    found.hooks.remove()
    assert len(set(map(id, closed))) == len(closed) == 2


def test_guarded_and_unguarded_runs_end_in_the_same_weights(install: Install) -> None:
    unguarded = trainer()
    for _ in range(3):
        step(unguarded)
    install()
    guarded = trainer()
    for _ in range(3):
        step(guarded)
    assert guarded.weights() == unguarded.weights() != WEIGHTS


def test_the_handshake_begins_when_the_parallel_groups_are_made(install: Install) -> None:
    from megatron.core import parallel_state

    found = install(meet=False)
    parallel_state.destroy_model_parallel()
    assert not found.guard.active
    parallel_state.initialize_model_parallel()
    assert found.guard.active


def test_without_parallel_groups_of_megatrons_the_first_chunk_begins_it(install: Install) -> None:
    found = install(meet=False)
    trainer()
    assert found.guard.active


def missing_step() -> tuple[Any, ...]:
    """The table, with a schedule that this Megatron does not have."""
    gone = Target("megatron.core.pipeline_parallel.schedules:forward_backward_gone", parameters=("model",))
    return tuple(replace(p, targets=(*p.targets, gone)) if p.group == "step" else p for p in POINTS)


def test_without_a_decision_point_the_run_is_unguarded_and_logs_that_once(
    install: Install, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    import megatron.core.pipeline_parallel.schedules  # noqa: F401

    found = install(meet=False)
    found.hooks.engine.remove()
    found.hooks.engine.points = missing_step()
    found.hooks.engine.install()
    found.meet()
    assert not found.guard.active
    assert log.messages == [
        "all ranks run unguarded: megatron.core.pipeline_parallel.schedules:forward_backward_gone is not in this "
        "Megatron; without it: steps and losses of micro-batches: the run is unguarded"
    ]
    made = trainer(ddp={"check_for_nan_in_grad": False})
    assert step(made, nan_in(made))


def test_strict_leaves_where_the_run_would_be_unguarded(install: Install) -> None:
    import megatron.core.pipeline_parallel.schedules  # noqa: F401

    found = install(meet=False, strict=True)
    found.hooks.engine.remove()
    found.hooks.engine.points = missing_step()
    found.hooks.engine.install()
    with pytest.raises(SystemExit, match="--nanguard-strict: all ranks run unguarded: megatron"):
        found.meet()


def test_a_megatron_of_the_future_is_named_once_and_guarded(
    install: Install, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    import megatron.core.package_info

    found = install(meet=False)
    monkeypatch.setattr(megatron.core.package_info, "__version__", "0.21.0")
    found.meet()
    assert found.guard.active
    assert [text for text in log.messages if "0.21.0" in text] == [
        "Megatron core 0.21.0 is outside of 0.8 to 0.19, which this version knows; functions that look as expected are "
        "wrapped, nanguard doctor lists them"
    ]


# ---------------------------------------------------------------------- steps


def test_a_bad_step_is_skipped_written_down_and_training_goes_on(install: Install, tmp_path: Path) -> None:
    found, made = install(), trainer()
    assert [step(made), step(made, ONES, nan_in(made)), step(made)] == [True, False, True]
    assert found.counts() == (3, 1, 1)
    assert all(map(math.isfinite, made.weights()))
    incident = load_incident(tmp_path).incident
    assert (incident.step, incident.kind, incident.policy.action) == (2, Kind.GRADIENT_BEFORE_REDUCTION, "skip")
    assert incident.ranks.bad_before == (0,)
    unguarded = trainer(ddp={"check_for_nan_in_grad": False})
    for _ in range(2):
        step(unguarded)
    assert made.weights() == unguarded.weights()


def test_the_hardware_under_the_rank_is_described_in_its_file(install: Install, tmp_path: Path) -> None:
    install()
    made = trainer()
    step(made, nan_in(made))
    (file,) = tmp_path.glob("runs/*/incidents/*/rank*.json")
    health = json.loads(file.read_text())["health"]
    assert (health["rank"], health["device"], health["problems"]) == (0, "cpu", [])


def test_abort_leaves_before_any_weight_has_moved(install: Install, left: list[int], tmp_path: Path) -> None:
    install(on_nonfinite="abort")
    made = trainer()
    with pytest.raises(SystemExit):
        step(made, nan_in(made))
    assert left == [65]
    assert made.weights() == WEIGHTS
    (run,) = (tmp_path / "runs").iterdir()
    status = json.loads((run / "status/rank00000.json").read_bytes())
    assert (status["steps_guarded"], status["alarms"], status["incidents"]) == (1, 1, 1)


def test_continue_applies_the_step(install: Install, left: list[int]) -> None:
    found, made = install(on_nonfinite="continue"), trainer()
    assert step(made, nan_in(made))
    assert all(map(math.isnan, made.weights()))
    assert found.counts() == (1, 1, 1)
    assert left == []


def test_a_skip_beyond_the_budget_is_an_abort(install: Install, left: list[int]) -> None:
    install(max_skips=(1, 10))
    made = trainer()
    assert not step(made, nan_in(made))
    with pytest.raises(SystemExit):
        step(made, nan_in(made))
    assert left == [65]


def test_a_trainer_that_takes_a_skip_for_fatal_gets_an_abort_instead(
    install: Install, left: list[int], monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    monkeypatch.setattr(guarded_run.host_program, "trainer_tolerates_skips", lambda: False)
    install()
    assert "this trainer takes a skipped step for a fatal error: policy abort instead of skip" in log.messages
    made = trainer()
    with pytest.raises(SystemExit):
        step(made, nan_in(made))
    assert left == [65]


def test_evaluation_is_no_step(install: Install) -> None:
    found, made = install(), trainer()
    made.forward_backward([nan_in(made)], forward_only=True)
    made.optimizer.prepare_grads()
    assert found.counts() == (0, 0, 0)
    assert step(made)
    assert found.counts() == (1, 0, 0)


def test_an_evaluation_between_pass_and_step_changes_nothing(install: Install) -> None:
    found, made = install(), trainer()
    made.forward_backward([nan_in(made)])
    made.ddp.eval()
    import megatron.core.pipeline_parallel.schedules as schedules

    schedules.forward_backward_no_pipelining(
        forward_step_func=lambda data, model: (model(next(data)), lambda output: (output.sum(), {})),
        data_iterator=iter([ONES]),
        model=[made.ddp],
        num_microbatches=1,
        seq_length=2,
        micro_batch_size=1,
        forward_only=True,
    )
    assert made.step()[0] is False
    assert found.counts() == (1, 1, 1)


def test_the_same_gradients_are_judged_once(install: Install) -> None:
    found, made = install(), trainer()
    made.forward_backward([nan_in(made)])
    assert made.optimizer.prepare_grads() is True
    assert made.optimizer.prepare_grads() is True
    assert found.counts() == (1, 1, 1)


def test_passes_that_are_never_seen_are_logged_once(install: Install, log: Log) -> None:
    install()
    made = trainer()
    for _ in range(20):
        made.optimizer.prepare_grads()
    assert [text for text in log.messages if "unguarded" in text] == [
        "steps run unguarded: no call of the pipeline schedule is seen (a full-iteration CUDA graph?)"
    ]


def test_a_norm_that_is_bad_only_in_the_sum_is_a_dead_step_of_the_next_vote(install: Install, tmp_path: Path) -> None:
    found, made = install(), trainer()
    step(made)
    found.hooks.guard.handlers["get_grad_norm"](made.optimizer, math.inf)
    assert not step(made)
    incident = load_incident(tmp_path).incident
    assert (incident.step, incident.kind) == (2, Kind.DEAD_STEP)
    assert step(made)


def test_an_optimizer_built_past_the_factory_is_guarded_with_its_chunk(install: Install) -> None:
    found, made = install(), trainer()
    assert found.guard.steps is not None
    found.guard.steps.optimizers.dismiss()
    assert not step(made, nan_in(made))
    assert found.counts() == (1, 1, 1)


# ---------------------------------------------------------------------- faults of our own


def test_a_fault_of_ours_switches_the_guard_off_and_megatrons_check_on(
    install: Install, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    found, made = install(), trainer()
    assert step(made)
    monkeypatch.setattr(step_decisions, "flag_tensor", lambda *args: 1 / 0)
    assert step(made)
    assert not found.guard.active
    assert made.ddp.ddp_config.check_for_nan_in_grad is True
    assert log.messages[-2:] == [
        "a fault of nanguard's own in flags; training goes on without it",
        "a fault of nanguard's own on some rank: it is off on all ranks, Megatron's own NaN checks are back on",
    ]
    assert step(made)
    assert found.counts()[0] == 2


@pytest.mark.parametrize(("of", "where"), [(GuardedOptimizer, "learn"), (GuardedStep, "open")])
def test_a_fault_in_names_or_at_the_start_of_a_step_does_not_hurt_training(
    install: Install, monkeypatch: pytest.MonkeyPatch, of: type, where: str
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("broken")

    found = install()
    monkeypatch.setattr(of, where, broken)
    made = trainer()
    assert step(made)
    assert not found.guard.active
    assert made.weights() != WEIGHTS


def test_a_bad_step_is_not_applied_though_a_part_of_ours_has_failed(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("broken")

    found = install()
    monkeypatch.setattr(GuardedOptimizer, "learn", broken)
    made = trainer()
    # Megatron's own check stood aside while these gradients went by.
    assert not step(made, nan_in(made))
    assert made.weights() == WEIGHTS
    assert not found.guard.active
    assert found.counts() == (1, 1, 1)


def test_a_rank_whose_start_failed_takes_part_in_an_incident(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(guarded_run, "RunFiles", broken)
    found = install()
    made = trainer()
    assert not step(made, nan_in(made))
    incident = load_incident(tmp_path).incident
    assert (incident.step, incident.policy.action, incident.ranks.bad_before) == (1, "skip", (0,))
    assert not found.guard.active
    assert found.counts() == (1, 1, 1)


def test_a_store_that_fails_before_the_handshake_leaves_the_run_unguarded(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(prefix: str) -> None:
        raise RuntimeError("the store is gone")

    found = install(meet=False)
    monkeypatch.setattr(run_handshake, "own_client", gone)
    found.meet()
    made = trainer()
    assert not found.guard.active
    assert step(made)


# ---------------------------------------------------------------------- drills


def test_a_drill_fires_at_its_step_and_is_caught(install: Install, tmp_path: Path) -> None:
    found = install(drill="inf@step=2,rank=0,phase=wgrad,param=second.weight")
    made = trainer()
    assert [step(made) for _ in range(3)] == [True, False, True]
    incident = load_incident(tmp_path).incident
    assert incident.step == 2
    assert {parameter.name for parameter in incident.parameters} == {"second.weight"}
    found.guard._at_exit()
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "drill/rank00000.json").read_bytes())["drills"][0]["steps"] == [2]


def test_a_drill_in_the_reduced_buffer_does_not_make_the_rank_bad(install: Install, tmp_path: Path) -> None:
    install(drill="nan@step=1,rank=0,phase=reduced,param=second.weight")
    assert not step(trainer())
    incident = load_incident(tmp_path).incident
    assert incident.kind is Kind.GRADIENT_AFTER_REDUCTION
    assert (incident.ranks.bad_before, incident.ranks.bad_after_only) == ((), (0,))


def test_a_drill_that_never_fired_is_an_error_at_exit(install: Install, left: list[int], log: Log) -> None:
    found = install(drill="nan@step=9,rank=0,phase=wgrad,param=second.weight")
    step(trainer())
    found.guard._at_exit()
    assert left == [66]
    assert "never fired" in log.messages[-1]


def test_a_drill_without_its_target_ends_the_run(install: Install, log: Log) -> None:
    install(drill="nan@step=1,rank=0,phase=wgrad,param=second.wieght")
    with pytest.raises(SystemExit) as caught:
        trainer()
    assert caught.value.code == 2
    assert "near it: second.weight" in log.messages[-1]


def test_after_a_fault_of_ours_drills_do_not_fire_unnoticed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(drill="nan@step=*,rank=0,phase=forward,module=first")
    made = trainer(ddp={"check_for_nan_in_grad": False})
    assert not step(made)
    monkeypatch.setattr(step_decisions, "flag_tensor", lambda *args: 1 / 0)
    step(made)
    made.forward_backward()
    made.net.first.weight.data.fill_(1.0)
    made.net.second.weight.data.fill_(1.0)
    # The weights are whole again, and nothing is planted into what they compute.
    assert made.net(ONES).tolist() == [[4.0]]


# ---------------------------------------------------------------------- off


def test_remove_leaves_no_trace(install: Install) -> None:
    found = install(drill="nan@step=5,rank=0,phase=forward,module=first")
    made = trainer()
    step(made)
    assert made.net.first._forward_hooks or made.net.first._forward_pre_hooks
    assert found.hooks.remove() == []
    states = {target.path: found.hooks.engine.state(target) for point in POINTS for target in point.targets}
    assert set(states.values()) <= {PointState.ABSENT, PointState.WAITING}
    assert not made.net.first._forward_hooks
    assert not made.net.first._forward_pre_hooks
    assert step(made)
    assert found.counts() == (1, 0, 0)
