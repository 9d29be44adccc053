"""What a run writes outside of incidents."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.guarded_run.run_files import RunFiles
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.records.run.fingerprint import HostChange
from megatron_nanguard.settings import Settings
from tests.unit.conftest import Log
from tests.unit.factories import place

CHANGE = HostChange("check_for_nan_in_grad", "True", "False", "why")


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``arguments(lr=1.0)``: what the host was started with."""
    return lambda **values: monkeypatch.setattr(
        host_program, "arguments", lambda: Namespace(**values) if values else None
    )


def run_in(path: Path, *, is_first: bool = True) -> RunFiles:
    return RunFiles(Settings(on=True, dir=str(path)), "run-1", 5, lambda: is_first)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


@pytest.mark.parametrize(
    ("given", "save", "root"),
    [
        ("given", "/save", "given"),
        (None, "/save", "/save/nanguard"),
        (None, None, "./nanguard"),
    ],
)
def test_files_go_where_the_user_says_else_beside_the_checkpoints(
    arguments: Callable[..., None], given: str | None, save: str | None, root: str
) -> None:
    arguments(save=save)
    run = RunFiles(Settings(on=True, dir=given), "run-1", 0, lambda: True)
    assert run.directory.path == Path(root) / "runs" / "run-1"


def test_nothing_is_created_before_the_first_write(tmp_path: Path) -> None:
    run_in(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_fingerprint_describes_the_start_without_the_drill_and_without_foreign_variables(
    tmp_path: Path, arguments: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments(lr=0.1, nanguard=True, nanguard_drill="nan@...", transformer_impl="local")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setattr("sys.argv", ["train.py", "--lr", "0.1", "--nanguard", "--nanguard-drill", "nan@..."])
    run_in(tmp_path).write_fingerprint(8, (CHANGE,))
    found = read(tmp_path / "runs/run-1/fingerprint.json")
    assert found["arguments"] == {"lr": "0.1", "nanguard": "True", "transformer_impl": "local"}
    assert found["environment"]["OMP_NUM_THREADS"] == "1"
    assert "SECRET_TOKEN" not in found["environment"]
    assert (found["run_id"], found["world_size"]) == ("run-1", 8)
    assert [change["option"] for change in found["host_changes"]] == ["check_for_nan_in_grad"]
    assert found["kernel_backends"] == {"transformer_impl": "local"}
    assert found["command_line"] == ["train.py", "--lr", "0.1"]


def test_a_host_without_arguments_of_its_own_has_no_command_line(
    tmp_path: Path, arguments: Callable[..., None]
) -> None:
    arguments()
    run_in(tmp_path).write_fingerprint(8, ())
    assert read(tmp_path / "runs/run-1/fingerprint.json")["command_line"] == []


def test_the_status_holds_counts_and_points(tmp_path: Path) -> None:
    run_in(tmp_path).write_status(place(5), {"m:f": 3}, {"steps_guarded": 7, "incidents": 1}, ("a note",))
    found = read(tmp_path / "runs/run-1/status/rank00005.json")
    assert (found["steps_guarded"], found["alarms"], found["incidents"]) == (7, 0, 1)
    assert (found["rank"], found["coordinates"]["dp"], found["points_fired"]) == (5, 0, {"m:f": 3})
    assert found["notes"] == ["a note"]


def test_the_map_of_a_second_optimizer_has_a_number(megatron: Any, tmp_path: Path) -> None:
    from megatron_nanguard.parameters.parameter_map import ParameterMap
    from megatron_nanguard.topology.coordinates import read as read_coordinates
    from tests.unit.one_rank import trainer

    made = trainer()
    coordinates, sizes = read_coordinates([made.ddp])
    run, names = run_in(tmp_path), ParameterMap([made.ddp], sizes)
    for _ in range(2):
        run.write_map(names, coordinates, sizes)
    assert sorted(path.name for path in (tmp_path / "runs/run-1").iterdir()) == [
        "param_map_tp0pp0dp0.1.json",
        "param_map_tp0pp0dp0.json",
    ]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_directory_that_cannot_be_written_costs_one_line_of_one_rank(
    tmp_path: Path, log: Log, is_first: bool
) -> None:
    (tmp_path / "file").write_text("")
    run = run_in(tmp_path / "file", is_first=is_first)
    for _ in range(2):
        run.write_drill_plan("nan@...")
    assert len(log.messages) == (1 if is_first else 0)
