"""Which level writes what, that the size is asked about first, and that a full disk costs a line in the log."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from megatron_nanguard.arbitration.call_catcher import CaughtCall, unsaved_call
from megatron_nanguard.coordination.store import own_client
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.incident import capturing
from megatron_nanguard.incident.collecting import Collector
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.json.record_file import from_json
from megatron_nanguard.records.step.capture import CaptureFile, file_name
from megatron_nanguard.records.suspect_call import SavedCall
from tests.unit.capture.steps import INCIDENT, TWO, capture, guard_optimizer, run_step
from tests.unit.conftest import Log
from tests.unit.one_rank import trainer

numbers = itertools.count(200)
CALL = CaughtCall(
    SavedCall(rank=0, operator="aten.log.default", module="first", phase="forward"), {"self": torch.tensor([-1.0])}
)


@pytest.fixture
def stepped(megatron: Any) -> GuardedOptimizer:
    """Two micro-batches of one rank, recorded."""
    made = trainer(ddp={"check_for_nan_in_grad": False})
    guarded = guard_optimizer(made, next(numbers))
    run_step(made, guarded)
    return guarded


def record_in(incident: Path) -> CaptureFile:
    return from_json(CaptureFile, (incident / file_name(0)).read_bytes())


def files_in(incident: Path) -> list[str]:
    return sorted(path.name for path in (incident / "capture").iterdir())


@pytest.mark.parametrize("level", ["ids", "op"])
def test_ids_are_digests_without_a_tensor_or_a_random_state(
    stepped: GuardedOptimizer, tmp_path: Path, level: str
) -> None:
    incident = capture(stepped, level, tmp_path, calls=[CALL])

    assert files_in(incident) == ["rank00000.json"]
    record = record_in(incident)
    assert (record.level, record.num_microbatches, record.random, record.gradients) == ("ids", 2, None, {})
    assert [leaf.shape for item in record.batch.iterators[0].items for leaf in item.leaves] == [(1, 2), (1, 2)]
    assert (record.batch.chunks, record.batch.is_list) == ((0,), False)
    assert [(call.operator, call.module, call.tensors) for call in record.calls] == [
        ("aten.log.default", "first", ("call/0/self",))
    ]
    assert list(record.digests) == ["batch/0/0", "batch/0/1", "call/0/self"]
    assert len(set(record.digests.values())) == 3


def test_equal_data_has_equal_digests_in_another_run(megatron: Any, tmp_path: Path) -> None:
    found = []
    for number, inputs in enumerate((TWO, TWO, TWO[::-1])):
        made = trainer(ddp={"check_for_nan_in_grad": False})
        guarded = guard_optimizer(made, next(numbers))
        run_step(made, guarded, inputs)
        found.append(list(record_in(capture(guarded, "ids", tmp_path / str(number))).digests.values()))
    assert found[0] == found[1]
    assert found[0] == found[2][::-1] != found[2]


def test_a_step_adds_micro_batches_random_states_and_gradients(stepped: GuardedOptimizer, tmp_path: Path) -> None:
    incident = capture(stepped, "step", tmp_path)

    tensors, record = load_file((incident / file_name(0)).with_suffix(".safetensors")), record_in(incident)
    assert record.level == "step"
    assert [tensors[f"batch/0/{number}"].tolist() for number in (0, 1)] == [[[1.0, 1.0]], [[2.0, 0.0]]]
    assert {name for name in tensors if name.startswith("random/")} >= {"random/python", "random/torch"}
    assert not any(name.startswith(("parameter/", "optimizer/")) for name in tensors)
    assert sorted(record.gradients) == sorted(record.norms) == ["first.weight", "second.weight"]


def test_full_adds_model_and_optimizer(stepped: GuardedOptimizer, tmp_path: Path) -> None:
    incident = capture(stepped, "full", tmp_path)
    tensors = load_file((incident / file_name(0)).with_suffix(".safetensors"))
    assert tensors["parameter/first.weight"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert record_in(incident).level == "full"


def test_where_the_step_could_not_be_run_again_digests_alone_are_written(
    stepped: GuardedOptimizer, tmp_path: Path
) -> None:
    incident = capture(stepped, "full", tmp_path, why_no_replay="the data iterator is a dict")
    assert files_in(incident) == ["rank00000.json"]
    assert (record_in(incident).level, record_in(incident).left_out) == ("ids", ("the data iterator is a dict",))


def test_a_call_that_was_not_kept_has_no_tensors(stepped: GuardedOptimizer, tmp_path: Path) -> None:
    call = unsaved_call(0, 7, "c10d.allreduce_.default", "a communication needs its group")
    (told,) = record_in(capture(stepped, "ids", tmp_path, calls=[call])).calls
    assert (told.operator, told.tensors) == ("c10d.allreduce_.default", ())


def test_without_room_digests_alone_are_written_and_one_line_is_logged(
    stepped: GuardedOptimizer, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capturing, "free_bytes", lambda directory: 1000)

    incident = capture(stepped, "full", tmp_path)

    why_not = "--nanguard-capture full takes 0.00 GiB over all ranks, 0.00 GiB are free in --nanguard-dir"
    assert log.messages == [f"{why_not}: digests alone are written"]
    assert files_in(incident) == ["rank00000.json"]
    assert (record_in(incident).level, record_in(incident).left_out) == ("ids", (why_not,))


def test_a_disk_that_fails_costs_the_tensors_of_this_rank_and_a_line(
    stepped: GuardedOptimizer, tmp_path: Path, log: Log
) -> None:
    target = tmp_path / "runs/run-1/incidents/step_00000001/capture/rank00000.safetensors"
    incident = capture(stepped, "full", tmp_path, before_writing=lambda: target.mkdir(parents=True))
    (message,) = log.messages
    assert message.startswith("rank00000.safetensors cannot be written: ")
    assert json.loads((incident / file_name(0)).read_text())["level"] == "ids"


def test_that_nothing_can_be_written_is_not_logged_a_second_time(
    stepped: GuardedOptimizer, tmp_path: Path, log: Log
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    said: list[str] = []
    run = RunDirectory(blocked, "run-1", said.append)
    run.write("status/rank00000.json", CALL.saved)

    capture(stepped, "full", blocked, run=run)

    assert log.messages == []
    assert len(said) == 1


@pytest.mark.parametrize("fails", ["", "collect", "free_bytes", "write_tensors"])
def test_what_fails_costs_this_ranks_capture_and_no_more(
    stepped: GuardedOptimizer, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def out_of_memory(*args: object) -> None:
        raise MemoryError("no room for a digest")

    if fails:
        monkeypatch.setattr(Collector if fails == "collect" else capturing, fails, out_of_memory)
    incident = capture(stepped, "full", tmp_path)
    assert [message.startswith("a fault of nanguard's own in incident, ") for message in log.messages] == (
        [True] if fails else []
    )
    assert (incident / file_name(0)).exists() is (fails in ("", "free_bytes"))


def test_no_collective_is_entered_before_the_slowest_rank_has_written(
    stepped: GuardedOptimizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[float] = []
    monkeypatch.setattr(capturing, "all_done", lambda *args: entered.append(time.monotonic()))
    slow = Watchdog(own_client(f"capture {tmp_path}"), 1, 2, 30.0, 0.0, leave=lambda code: None)
    written: list[float] = []

    def write_slowly() -> None:
        time.sleep(1.0)
        written.append(time.monotonic())
        slow.wait_for_all(f"captured/{INCIDENT}/0")

    thread = threading.Thread(target=write_slowly)
    thread.start()
    capture(stepped, "full", tmp_path, world_size=2)
    thread.join()
    assert written < entered


@pytest.mark.parametrize(("fullest_gib", "level"), [(2, "ids"), (3, "full")])
def test_all_ranks_need_room_on_the_fullest_disk(
    stepped: GuardedOptimizer,
    tmp_path: Path,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    fullest_gib: int,
    level: str,
) -> None:
    rows = [[2 << 30, 9 << 30], [1 << 30, fullest_gib << 30]]
    monkeypatch.setattr(capturing, "exchange", lambda *args: rows)
    allowed: list[float] = []
    monkeypatch.setattr(Watchdog, "stage", lambda self, name, seconds=0.0: allowed.append(seconds))

    incident = capture(stepped, "full", tmp_path)

    assert record_in(incident).level == level
    why_not = "--nanguard-capture full takes 3.00 GiB over all ranks, 2.00 GiB are free in --nanguard-dir"
    assert log.messages == ([f"{why_not}: digests alone are written"] if level == "ids" else [])
    assert allowed == [0.0, 64.0]
