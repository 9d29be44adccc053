"""`nanguard redact`: output and exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from megatron_nanguard.cli.redact import command
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.suspect_call import SavedCall
from tests.unit.cli.leaving import leave


def test_every_file_that_was_changed_is_named(tmp_path: Path) -> None:
    (tmp_path / "call.json").write_bytes(to_json(SavedCall(rank=0, operator="aten.log.default")))
    (tmp_path / "tensors.safetensors").write_bytes(b"numbers")

    result = CliRunner().invoke(command, [str(tmp_path)])

    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"marked {tmp_path}/call.json",
        f"deleted {tmp_path}/tensors.safetensors",
        "2 files",
    ]


def test_a_directory_without_tensors_has_nothing_to_strip(tmp_path: Path) -> None:
    assert CliRunner().invoke(command, [str(tmp_path)]).output == "nothing to strip\n"


def test_a_bundle_that_cannot_be_read_is_named_and_the_others_are_stripped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "call.json").write_bytes(to_json(SavedCall(rank=0, operator="aten.log.default")))
        (tmp_path / name / "tensors.safetensors").write_bytes(b"numbers")
    (tmp_path / "a" / "call.json").write_text("{")

    code, out, err = leave(capsys, "redact", tmp_path)

    assert code == 4
    assert out.splitlines() == [
        f"deleted {tmp_path}/a/tensors.safetensors",
        f"marked {tmp_path}/b/call.json",
        f"deleted {tmp_path}/b/tensors.safetensors",
    ]
    assert err.startswith(f"nanguard: {tmp_path}/a/call.json: not JSON ") and err.count("\n") == 1


@pytest.mark.parametrize("name", ["none", "x" * 300])
def test_a_path_that_is_no_directory_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, _, err = leave(capsys, "redact", tmp_path / name)

    assert code == 4
    assert err == (
        f"nanguard: {tmp_path / name} is no directory; give the directory of --nanguard-dir, a run or an incident\n"
    )


def test_redact_imports_no_torch() -> None:
    probe = "import sys, megatron_nanguard.cli.redact; print([m for m in ('torch', 'numpy') if m in sys.modules])"

    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    assert result.stdout == "[]\n"
