"""An incident from first to last, on one rank; the others come in the multi-rank tests."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.guarded_run.guarded_run import GuardedRun
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from megatron_nanguard.incident import auditing, merged_file, stages
from megatron_nanguard.incident.alarm import Alarm
from megatron_nanguard.incident.collecting import Collector
from megatron_nanguard.incident.merged_file import MergedFile
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.postmortem.loading import load_incident
from megatron_nanguard.records.incident import Incident, PolicyOutcome
from megatron_nanguard.records.json.record_file import from_json
from megatron_nanguard.records.postmortem import Kind, Postmortem, RankSets
from megatron_nanguard.records.step.capture import CaptureFile
from megatron_nanguard.records.step.replay import ReplaySummary
from megatron_nanguard.sentinel.vote_flags import Flag
from megatron_nanguard.settings import Settings
from tests.unit.capture.steps import guard_optimizer, run_step
from tests.unit.conftest import Log
from tests.unit.guarded_run.watched import Watched
from tests.unit.one_rank import ONES, Trainer, trainer

Watch = Callable[..., Watched]
numbers = itertools.count(300)
SKIP = PolicyOutcome("skip", "skip", None, "Policy skip: the step is skipped on all ranks.")


def run_in(path: Path, **settings: Any) -> GuardedRun:
    """A run of one rank with policy skip that has started, with a handshake of its own.

    Args:
        path: where it writes.
        settings: that differ from an evidence of suspect operators and a deadline of 30 seconds.
    """
    base = Settings(on=True, dir=str(path), deadline=30.0, capture="op")
    run = GuardedRun(replace(base, **settings), RunHandshake((0,), next(numbers)), Shield(), Counter(), [])
    run.run_id, run.policy = "run-1", "skip"
    run.start()
    return run


def plant(made: Trainer) -> None:
    made.net.first.weight.main_grad[0, 1] = math.nan


def alarm_of(guarded: GuardedOptimizer) -> Alarm:
    voters = guarded.voting_ranks.voters()
    assert voters is not None
    votes = tuple(int(flag in (Flag.LOCAL, Flag.REDUCED)) for flag in Flag)
    return Alarm(votes, guarded.optimizer, voters)  # type: ignore[arg-type]


def handle(watched: Watched, run: GuardedRun) -> PolicyOutcome:
    guarded = watched.run(before=plant)
    return stages.handle(run, guarded, alarm_of(guarded))


def test_the_files_of_an_incident_agree(watch: Watch, tmp_path: Path, log: Log) -> None:
    assert handle(watch(), run_in(tmp_path)) == SKIP
    folder = tmp_path / "runs/run-1/incidents/step_00000001"
    assert sorted(path.name for path in folder.iterdir()) == ["incident.json", "rank00000_tp0pp0dp0.json"]
    rank = from_json(Postmortem, (folder / "rank00000_tp0pp0dp0.json").read_bytes())
    merged = load_incident(tmp_path).incident
    sets = RankSets((0,), (), ())
    assert (rank.phase, rank.kind, rank.ranks, rank.policy) == (
        "complete",
        Kind.GRADIENT_BEFORE_REDUCTION,
        sets,
        "skip",
    )
    assert (merged.kind, merged.ranks, merged.policy) == (Kind.GRADIENT_BEFORE_REDUCTION, sets, SKIP)
    (message,) = log.messages
    assert message.startswith("non-finite gradient or loss. ")
    assert message.endswith(f"{SKIP.words} See: nanguard report {folder}")


def test_a_second_incident_of_a_step_has_a_directory_of_its_own(watch: Watch, tmp_path: Path) -> None:
    run, watched = run_in(tmp_path), watch()
    handle(watched, run)
    watched.guarded.step.is_open = True
    handle(watched, run)
    names = sorted(path.name for path in (tmp_path / "runs/run-1/incidents").iterdir())
    assert names == ["step_00000001", "step_00000001.1"]


def test_without_a_place_to_write_the_incident_goes_through_its_stages(watch: Watch, tmp_path: Path, log: Log) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    run = run_in(blocked)
    assert handle(watch(), run) == SKIP
    assert run.shield.fault is None
    unwritten, message = log.messages
    assert "not a directory" in unwritten.lower()
    assert message.startswith("non-finite gradient or loss. ")
    assert message.endswith(SKIP.words)


def test_evidence_that_cannot_be_collected_is_a_fault_of_this_rank_and_the_exchange_goes_on(
    watch: Watch, tmp_path: Path
) -> None:
    watched, run = watch(), run_in(tmp_path)
    del watched.guarded.names
    assert handle(watched, run) == SKIP
    assert run.failed_stages == {
        "signal": "incident, signal: AttributeError: 'GuardedOptimizer' object has no attribute 'names'"
    }
    assert run.shield.fault is None, "the guard stays on"


STAGES = {
    "audit": (auditing, "audit"),
    "first merging": (merged_file.MergedFile, "after_exchange"),
    "merging": (merged_file, "conclude"),
    "capture": (Collector, "collect"),
    "arbitration": (stages, "arbitrate_all"),
}


@pytest.mark.parametrize("stage", ["", *STAGES])
def test_a_stage_that_fails_costs_its_result_is_named_and_is_left_out_next_time(
    megatron: Any, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    calls: list[str] = []

    def fail(*args: object, **kwargs: object) -> None:
        calls.append(stage)
        raise LookupError("planted by the test")

    if stage:
        monkeypatch.setattr(*STAGES[stage], fail)
    made = trainer(ddp={"check_for_nan_in_grad": False})
    guarded, run = guard_optimizer(made, next(numbers)), run_in(tmp_path)
    for number in (1, 2):
        run_step(made, guarded, (ONES * math.nan,))
        assert stages.handle(run, guarded, alarm_of(guarded)) == SKIP
        sentences = [message for message in log.messages if message.startswith("non-finite gradient or loss. ")]
        assert len(sentences) == number
    assert run.shield.fault is None
    assert calls == ([stage] if stage else [])

    (first, second) = [
        from_json(Postmortem, path.read_bytes()) for path in sorted(tmp_path.glob("runs/*/incidents/*/rank*.json"))
    ]
    fault = f"incident, {stage}: LookupError: planted by the test"
    assert (first.flags.own_fault, second.flags.own_fault) == (bool(stage), bool(stage))
    assert first.notes == ((f"a part of the guard failed on this rank: {fault}",) if stage else ())
    assert second.notes == ((f"left out, since it failed in an earlier incident: {fault}",) if stage else ())
    assert load_incident(tmp_path).incident.own_faults == ((0,) if stage else ())


@pytest.mark.parametrize("fails", [False, True])
def test_digests_that_fail_cost_the_saved_step_and_not_the_guard(
    megatron: Any, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def out_of_memory(guarded: object) -> None:
        raise MemoryError("no room for a digest")

    if fails:
        monkeypatch.setattr(stages, "gradients_by_name", out_of_memory)
    made = trainer(ddp={"check_for_nan_in_grad": False})
    guarded = guard_optimizer(made, next(numbers))
    run_step(made, guarded)
    plant(made)
    run = run_in(tmp_path, capture="step")

    assert stages.handle(run, guarded, alarm_of(guarded)) == SKIP

    assert run.shield.fault is None
    record = from_json(CaptureFile, next(tmp_path.glob("runs/*/incidents/*/capture/*.json")).read_bytes())
    expected = ("ids", ("the gradients of this rank could not be digested",)) if fails else ("step", ())
    assert (record.level, record.left_out) == expected


def test_a_call_is_on_its_way_to_the_peer_before_the_traces_are_joined(
    megatron: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(stages, "send_first", lambda *args: order.append("sent"))
    monkeypatch.setattr(MergedFile, "after_replay", lambda *args: order.append("joined"))
    made = trainer(ddp={"check_for_nan_in_grad": False})
    guarded = guard_optimizer(made, next(numbers))
    run_step(made, guarded, (ONES * math.nan,))
    stages.handle(run_in(tmp_path / "1"), guarded, alarm_of(guarded))
    assert order == ["sent", "joined"]

    run_step(made, guarded, (ONES * math.nan,))
    stages.handle(run_in(tmp_path / "2", capture="none"), guarded, alarm_of(guarded))
    assert order == ["sent", "joined", "joined"]


def test_a_policy_that_fails_ends_the_rank_and_is_reported_to_the_others(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(Watchdog.__init__, "__defaults__", (False, codes.append))

    def no_policy(*args: object, **kwargs: object) -> PolicyOutcome:
        raise RuntimeError("no policy")

    monkeypatch.setattr(stages, "decide", no_policy)
    run = run_in(tmp_path)
    with pytest.raises(RuntimeError):
        handle(watch(), run)
    assert codes == [65]
    assert run.handshake.store("incident").get("failed") == b"rank 0, stage exchange: no policy"
    merged = from_json(Incident, (tmp_path / "runs/run-1/incidents/step_00000001/incident.json").read_bytes())
    assert (merged.ranks, merged.policy.action, merged.causes) == (RankSets((0,), (), ()), "unknown", ())
    assert merged.replay == ReplaySummary(why_not="switched off (--nanguard-replay off)")
