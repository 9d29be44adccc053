"""`nanguard report`: output, exit code, and what it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from megatron_nanguard.cli import main
from megatron_nanguard.cli.report import command
from megatron_nanguard.postmortem.directory import RunDirectory
from megatron_nanguard.report import report_text
from tests.unit.diagnosis.factories import sink, to_origin, trace, traced_origin
from tests.unit.factories import demo_postmortem, incident


def write_incident(root: Path) -> Path:
    written = RunDirectory(root, "run", print).write("incidents/step_00000003/incident.json", incident())
    assert written is not None
    return written.parent


def test_the_incident_under_a_directory_is_printed(tmp_path: Path) -> None:
    directory = write_incident(tmp_path)

    result = CliRunner().invoke(command, [str(tmp_path)])

    assert result.exit_code == 0
    assert result.output == report_text(incident(), directory)


def test_files_of_ranks_that_nobody_merged_are_joined_and_judged(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "run", print)
    for rank in range(8):
        run.write_postmortem("incidents/step_00000003", demo_postmortem(rank))
    seen = trace(5, origins=(traced_origin(),), sinks=(sink(to_origin()),))
    run.write("incidents/step_00000003/trace00005_tp1pp1dp0.json", seen)

    result = CliRunner().invoke(command, [str(tmp_path)])

    assert result.exit_code == 0
    assert "rank 5, backward of micro-batch 2" in result.output
    assert "the run ended before the files of its ranks were merged" in result.output


def test_a_directory_without_incident_is_one_line_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["report", str(tmp_path)])

    assert caught.value.code == 4
    assert capsys.readouterr().err.count("\n") == 1


def test_report_imports_neither_torch_nor_megatron() -> None:
    probe = (
        "import sys, megatron_nanguard.cli.report; "
        "print([name for name in ('torch', 'megatron', 'numpy') if name in sys.modules])"
    )

    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    assert result.stdout == "[]\n"
