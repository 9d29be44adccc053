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


@pytest.mark.parametrize(
    ("imported", "installed", "line"),
    [
        ("0.8.0", "0.19.2", "megatron-core 0.8.0 in /tree/megatron/core; installed is 0.19.2"),
        ("0.19.2+5bb8a95", "0.19.2", "megatron-core 0.19.2+5bb8a95 in /tree/megatron/core"),
        ("0.12.3", "not installed", "megatron-core 0.12.3 in /tree/megatron/core"),
        (None, "0.15.3", "megatron-core 0.15.3, cannot be imported"),
    ],
)
def test_the_megatron_that_was_imported_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    imported: str | None,
    installed: str,
    line: str,
) -> None:
    monkeypatch.setattr(doctor, "_patch_point_states", list)
    monkeypatch.setattr("megatron_nanguard.health.available_sources.list_sources", tuple)
    monkeypatch.setattr(doctor, "_version", lambda package: installed)
    monkeypatch.setattr("megatron_nanguard.megatron_api.host_program.core_version", lambda: imported)
    folder = None if imported is None else "/tree/megatron/core"
    monkeypatch.setattr("megatron_nanguard.megatron_api.host_program.core_folder", lambda: folder)

    with pytest.raises(SystemExit):
        main(["doctor"])

    assert line in capsys.readouterr().out.splitlines()
