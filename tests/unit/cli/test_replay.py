"""`nanguard replay`: output, exit codes, and that a hostile bundle runs nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
import torch
from click.testing import CliRunner

from megatron_nanguard.arbitration.bundle import write_bundle
from megatron_nanguard.cli import main
from megatron_nanguard.cli.replay import command
from tests.unit.arbitration.calls import catch


def write(directory: Path, x: torch.Tensor) -> Path:
    call = catch(x.log, "aten.log.default")
    saved = replace(call.saved, device="A card", module="decoder.layers.1.mlp", step=3)
    assert write_bundle(directory, replace(call, saved=saved))
    return directory


def test_devices_are_compared_with_the_run(tmp_path: Path) -> None:
    write(tmp_path, torch.tensor([1.0, -1.0, 0.0]))

    result = CliRunner().invoke(command, [str(tmp_path), "--device", "cpu"], standalone_mode=False)

    assert result.output.splitlines() == [
        "aten.log.default in decoder.layers.1.mlp, rank 5, step 3",
        "in the run    A card; output 0: 1 NaN, 1 -Inf, first at (1,)",
        "cpu           bad; output 0: 1 NaN, 1 -Inf, first at (1,)",
        "cpu, float64  bad",
    ]
    assert result.return_value == 1


def test_how_many_rows_of_the_call_are_there_is_said(tmp_path: Path) -> None:
    write(tmp_path, torch.cat([torch.ones(63, 1), -torch.ones(1, 1)]))

    result = CliRunner().invoke(command, [str(tmp_path), "--device", "cpu"], standalone_mode=False)

    assert result.output.splitlines()[1] == "5 of 64 rows"


def test_a_call_that_is_finite_here_leaves_with_0(tmp_path: Path) -> None:
    write(tmp_path, torch.tensor([1.0]))

    result = CliRunner().invoke(command, [str(tmp_path)], standalone_mode=False)

    assert result.return_value == 0
    assert "cpu           finite" in result.output.splitlines()


def test_a_hostile_bundle_is_refused_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, torch.tensor([-1.0]))
    (tmp_path / "repro.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    call = orjson.loads((tmp_path / "call.json").read_bytes())
    call["operator"] = "aten.from_file.default"
    (tmp_path / "call.json").write_bytes(orjson.dumps(call))

    with pytest.raises(SystemExit) as left:
        main(["replay", str(tmp_path)])

    assert left.value.code == 4
    assert capsys.readouterr().err == (
        "nanguard: operator 'aten.from_file.default' is not on the list of what a bundle may call; nothing was run\n"
    )
    assert not (tmp_path / "ran").exists()


def test_replay_without_torch_is_one_line(tmp_path: Path) -> None:
    probe = (
        "import sys; sys.modules['torch'] = None; "
        f"from megatron_nanguard.cli import main; main(['replay', {str(tmp_path)!r}])"
    )

    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert result.stderr.startswith("Error: a call can only be run where torch is installed: ")
    assert result.stderr.count("\n") == 1
