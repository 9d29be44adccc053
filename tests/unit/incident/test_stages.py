"""An incident from first to last, on one rank; the others come in the multi-rank tests."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.coordination.store import own_client
from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.incident import Alarm, Setting, stages
from megatron_nanguard.incident.files import MergedFile
from megatron_nanguard.patching import Shield
from megatron_nanguard.postmortem.reading import load_incident
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.capture import CaptureFile
from megatron_nanguard.records.incident import Incident, PolicyOutcome
from megatron_nanguard.records.json.conversion import from_json
from megatron_nanguard.records.postmortem import Kind, Postmortem, RankSets
from megatron_nanguard.records.replay import ReplaySummary
from megatron_nanguard.sentinel import Flag
from tests.unit.capture.steps import guarded, run_step
from tests.unit.conftest import Log
from tests.unit.guarded_run.watched import Watched
from tests.unit.one_rank import ONES, Trainer, trainer

Watch = Callable[..., Watched]
numbers = itertools.count(300)
SKIP = PolicyOutcome("skip", "skip", None, "Policy skip: the step is skipped on all ranks.")


def setting_in(path: Path, said: list[str], leave: Callable[[int], None] = lambda code: None) -> Setting:
    return Setting(
        voters=Voters((0,), None),
        run=RunDirectory(path, "run-1", said.append),
        run_id="run-1",
        deadline=30.0,
        policy_name="skip",
        shield=Shield(),
        watchdog=Watchdog(own_client("incident"), 0, 1, leave),
        exercise=nullcontext,
        capture="op",
    )


def plant(made: Trainer) -> None:
    made.net.first.weight.main_grad[0, 1] = math.nan


def handle(watched: Watched, setting: Setting) -> PolicyOutcome:
    subject = watched.run(before=plant)
    votes = tuple(int(flag in (Flag.LOCAL, Flag.REDUCED)) for flag in Flag)
    return stages.handle(subject, Alarm(votes, subject.optimizer), setting, lambda outcome: SKIP)


def test_the_files_of_an_incident_agree(watch: Watch, tmp_path: Path, log: Log) -> None:
    said: list[str] = []
    assert handle(watch(), setting_in(tmp_path, said)) == SKIP
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
    assert said == []
    (message,) = log.messages
    assert message.startswith("non-finite gradient or loss. ")
    assert message.endswith(f"{SKIP.words} See: nanguard report {folder}")


def test_a_second_incident_of_a_step_has_a_directory_of_its_own(watch: Watch, tmp_path: Path) -> None:
    setting, watched = setting_in(tmp_path, []), watch()
    handle(watched, setting)
    watched.subject.is_open = True
    handle(watched, setting)
    names = sorted(path.name for path in (tmp_path / "runs/run-1/incidents").iterdir())
    assert names == ["step_00000001", "step_00000001.1"]


def test_without_a_place_to_write_the_incident_runs_its_course(watch: Watch, tmp_path: Path, log: Log) -> None:
    said: list[str] = []
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    setting = setting_in(blocked, said)
    assert handle(watch(), setting) == SKIP
    assert setting.shield.fault is None
    assert len(said) == 1
    (message,) = log.messages
    assert message.startswith("non-finite gradient or loss. ")
    assert message.endswith(SKIP.words)


def test_evidence_that_cannot_be_collected_is_a_fault_of_this_rank_and_the_exchange_goes_on(
    watch: Watch, tmp_path: Path
) -> None:
    watched, setting = watch(), setting_in(tmp_path, [])
    del watched.subject.names
    assert handle(watched, setting) == SKIP
    assert setting.shield.fault == (
        "incident, signal: AttributeError: 'GuardedOptimizer' object has no attribute 'names'"
    )


@pytest.mark.parametrize("fails", [False, True])
def test_digests_that_fail_cost_the_saved_step_and_not_the_guard(
    megatron: Any, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def out_of_memory(subject: object) -> None:
        raise MemoryError("no room for a digest")

    if fails:
        monkeypatch.setattr(stages, "first_gradients", out_of_memory)
    made = trainer(ddp={"check_for_nan_in_grad": False})
    subject = guarded(made, next(numbers))
    run_step(made, subject)
    plant(made)
    setting = replace(setting_in(tmp_path, []), capture="step")

    assert stages.handle(subject, Alarm((1, 1, 0, 0, 0, 0, 0), made.optimizer), setting, lambda outcome: SKIP) == SKIP

    assert setting.shield.fault is None
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
    subject = guarded(made, next(numbers))
    run_step(made, subject, (ONES * math.nan,))
    alarm = Alarm((1, 1, 0, 0, 0, 0, 0), made.optimizer)
    stages.handle(subject, alarm, setting_in(tmp_path / "1", []), lambda outcome: SKIP)
    assert order == ["sent", "joined"]

    run_step(made, subject, (ONES * math.nan,))
    stages.handle(subject, alarm, replace(setting_in(tmp_path / "2", []), capture="none"), lambda outcome: SKIP)
    assert order == ["sent", "joined", "joined"]


def test_a_policy_that_fails_ends_the_rank_and_tells_the_others(watch: Watch, tmp_path: Path) -> None:
    codes: list[int] = []
    setting = setting_in(tmp_path, [], codes.append)
    subject = watch().run(before=plant)

    def policy(outcome: object) -> PolicyOutcome:
        raise RuntimeError("no policy")

    with pytest.raises(RuntimeError):
        stages.handle(subject, Alarm((1, 1, 0, 0, 0, 0, 0), subject.optimizer), setting, policy)
    assert codes == [65]
    assert own_client("incident").get("failed") == b"rank 0, stage exchange: no policy"
    merged = from_json(Incident, (tmp_path / "runs/run-1/incidents/step_00000001/incident.json").read_bytes())
    assert (merged.ranks, merged.policy.action, merged.causes) == (RankSets((0,), (), ()), "unknown", ())
    assert merged.replay == ReplaySummary(why_not="switched off (--nanguard-replay off)")
