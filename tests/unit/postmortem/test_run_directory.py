"""Files of a run reach the disk whole, or cost one line of the log."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from megatron_nanguard.postmortem import run_directory as run_directory_module
from megatron_nanguard.postmortem.run_directory import RunDirectory, postmortem_name
from megatron_nanguard.records.json.record_file import from_json
from megatron_nanguard.records.postmortem import Postmortem
from tests.unit.factories import demo_postmortem, postmortem


class Log(list[str]):
    """Lines, as a logger would take them."""

    def __call__(self, line: str) -> None:
        self.append(line)


def run_directory(root: Path) -> tuple[RunDirectory, Log]:
    log = Log()
    return RunDirectory(root, "run1", log), log


def test_a_record_is_written_below_the_run_and_nothing_else_is_left(tmp_path: Path) -> None:
    directory, log = run_directory(tmp_path)

    written = directory.write("status/rank00000.json", postmortem(0))

    assert written == tmp_path / "runs/run1/status/rank00000.json"
    assert from_json(Postmortem, written.read_bytes()) == postmortem(0)
    assert os.listdir(written.parent) == ["rank00000.json"]
    assert log == []


def test_nothing_is_created_before_the_first_write(tmp_path: Path) -> None:
    directory, _ = run_directory(tmp_path)

    directory.incident_path(3)

    assert list(tmp_path.iterdir()) == []


def test_a_withdrawn_incident_leaves_nothing_once_every_rank_withdrew_it(tmp_path: Path) -> None:
    directories = [run_directory(tmp_path)[0] for _ in range(2)]
    names = [postmortem_name(postmortem(rank)) for rank in range(2)]
    for rank, directory in enumerate(directories):
        directory.write_postmortem(directory.incident_path(3), postmortem(rank))

    directories[0].withdraw("incidents/step_00000003", 3, names[0])

    assert os.listdir(tmp_path / "runs/run1/incidents/step_00000003") == [names[1]]
    directories[1].withdraw("incidents/step_00000003", 3, names[1])
    assert os.listdir(tmp_path / "runs/run1") == []
    assert [directory.incident_path(3) for directory in directories] == 2 * ["incidents/step_00000003"]


def test_withdrawing_an_incident_leaves_other_incidents_alone(tmp_path: Path) -> None:
    directory, log = run_directory(tmp_path)
    kept = directory.write_postmortem(directory.incident_path(2), postmortem(0))
    directory.incident_path(3)

    directory.withdraw("incidents/step_00000003", 3, "rank00000_tp0pp0dp0.json")

    assert kept is not None and kept.exists()
    assert log == []


def test_a_second_incident_of_a_step_gets_a_number(tmp_path: Path) -> None:
    directory, _ = run_directory(tmp_path)

    paths = [directory.incident_path(step) for step in (123, 123, 124, 123)]

    assert paths == [
        "incidents/step_00000123",
        "incidents/step_00000123.1",
        "incidents/step_00000124",
        "incidents/step_00000123.2",
    ]


def test_the_file_of_a_rank_is_named_by_rank_and_place() -> None:
    assert postmortem_name(postmortem(5)) == "rank00005_tp1pp1dp0.json"


def test_the_complete_postmortem_replaces_the_one_of_the_signal(tmp_path: Path) -> None:
    directory, _ = run_directory(tmp_path)

    directory.write_postmortem("incidents/step_00000003", postmortem(5, phase="signal", ranks=None))
    written = directory.write_postmortem("incidents/step_00000003", postmortem(5))

    assert written is not None
    assert from_json(Postmortem, written.read_bytes()).phase == "complete"
    assert os.listdir(written.parent) == ["rank00005_tp1pp1dp0.json"]


def test_a_directory_that_cannot_be_made_is_logged_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file in place of the directory")
    directory, log = run_directory(tmp_path)
    assert not directory.has_failed

    assert directory.write("incidents/a.json", postmortem(0)) is None
    assert directory.write("incidents/b.json", postmortem(1)) is None
    assert directory.has_failed
    assert log == [
        f"cannot write {tmp_path}/runs/run1/incidents/a.json: Not a directory; "
        "training goes on, further files that fail are not mentioned"
    ]


def test_only_the_first_failure_of_a_run_is_logged(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    directory, log = run_directory(tmp_path)

    directory.write("incidents/a.json", postmortem(0))
    directory.write("status/a.json", postmortem(0))

    assert len(log) == 1


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, log = run_directory(tmp_path)
    written = directory.write("incidents/a.json", postmortem(0))
    assert written is not None
    before = written.read_bytes()

    def write_half(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_half)

    assert directory.write("incidents/a.json", demo_postmortem(5)) is None
    assert written.read_bytes() == before
    assert os.listdir(written.parent) == ["a.json"]
    assert len(log) == 1 and "No space left on device" in log[0]


def test_the_directory_is_created_by_the_next_write_after_a_failure(tmp_path: Path) -> None:
    blocker = tmp_path / "runs"
    blocker.write_text("a file")
    directory, log = run_directory(tmp_path)
    directory.write("incidents/a.json", postmortem(0))

    blocker.unlink()

    assert directory.write("incidents/a.json", postmortem(0)) is not None
    assert len(log) == 1


def test_a_file_system_that_hangs_is_waited_for_once_in_a_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, log = threading.Event(), Log()
    directory = RunDirectory(tmp_path, "run1", log, patience=0.5)
    monkeypatch.setattr(run_directory_module, "write_record", lambda *args: gate.wait(30))
    directory.begin_incident()
    directory.begin_stage()
    began = time.monotonic()

    for name in ("a", "b", "c"):
        assert directory.write(f"incidents/{name}.json", postmortem(0)) is None

    assert time.monotonic() - began < 5.0
    assert directory.left_out == ["incidents/a.json", "incidents/b.json", "incidents/c.json"]
    assert log == [
        f"cannot write {tmp_path}/runs/run1/incidents/a.json: the file system does not answer in time; "
        "training goes on, further files that fail are not mentioned"
    ]
    gate.set()
    directory.end_incident()
    assert directory.write("incidents/d.json", postmortem(0)) is not None


def test_what_cannot_be_read_is_logged_as_such_and_the_next_incident_forgets_it(tmp_path: Path) -> None:
    directory, log = run_directory(tmp_path)

    assert directory.attempt("incidents/a", lambda: os.listdir(tmp_path / "gone"), "read") is None

    assert directory.has_failed
    assert log[0].startswith(f"cannot read {tmp_path}/runs/run1/incidents/a: No such file or directory; ")
    directory.begin_incident()
    assert not directory.has_failed
    assert directory.attempt("x", lambda: 3, "read") == 3
