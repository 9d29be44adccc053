"""`nanguard redact`: output and exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from megatron_nanguard.cli import main
from megatron_nanguard.cli.redact import command
from megatron_nanguard.records.bundle import SavedCall
from megatron_nanguard.records.json_form import to_json


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


def test_a_bundle_that_cannot_be_read_is_one_line_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "call.json").write_text("{")

    with pytest.raises(SystemExit) as left:
        main(["redact", str(tmp_path)])

    assert left.value.code == 4
    assert capsys.readouterr().err.count("\n") == 1


def test_redact_imports_no_torch() -> None:
    probe = "import sys, megatron_nanguard.cli.redact; print([m for m in ('torch', 'numpy') if m in sys.modules])"

    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    assert result.stdout == "[]\n"
