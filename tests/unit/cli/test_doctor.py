"""`nanguard doctor` where it has nothing to look at."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_nanguard.cli import doctor, main
from megatron_nanguard.records.machine.doctor import SourceState
from tests.unit.cli.leaving import leave


def test_without_torch_the_error_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(SystemExit) as caught:
        main(["doctor"])

    assert caught.value.code == 1
    assert capsys.readouterr().err == (
        "Error: patch points can only be resolved where torch is installed, beside Megatron\n"
    )


def test_doctor_lists_the_hardware_counters_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_patch_point_states", list)
    sources = (SourceState("NVML", True, "8 GPUs"), SourceState("npu-smi", False, "npu-smi is not on PATH"))
    monkeypatch.setattr("megatron_nanguard.health.available_sources.list_sources", lambda: sources)

    with pytest.raises(SystemExit) as caught:
        main(["doctor"])

    assert caught.value.code == 0
    assert (
        "hardware counters, which are evidence in an incident:\n"
        "ok  NVML                       8 GPUs\n"
        "--  npu-smi                    npu-smi is not on PATH\n"
    ) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("none", "DIR/none is no directory; give the directory of one run, DIR/runs/RUN"),
        ("x" * 300, f"DIR/{'x' * 300} is no directory; give the directory of one run, DIR/runs/RUN"),
        ("empty", "DIR/empty holds no status files; they are written when a guarded run ends"),
        ("root", "DIR/root holds no status files; they are written when a guarded run ends; give one of its runs/"),
    ],
)
def test_a_path_that_is_no_run_is_refused_before_anything_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, complaint: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "root" / "runs").mkdir(parents=True)

    code, out, err = leave(capsys, "doctor", tmp_path / name)

    assert (code, out) == (4, "")
    assert err.replace(str(tmp_path), "DIR") == f"nanguard: {complaint}\n"


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_a_status_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], object]
) -> None:
    file = tmp_path / "status" / "rank00000.json"
    file.parent.mkdir()
    make(file)

    code, out, err = leave(capsys, "doctor", tmp_path)

    assert (code, out, err.count("\n")) == (4, "", 1)
    assert err.startswith(f"nanguard: {file}: ")
