"""`nanguard reload`: what is wrong is said before a model is built."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_nanguard.cli import main
from megatron_nanguard.records.json.record_file import to_json
from megatron_nanguard.records.step.capture import CaptureFile, file_name
from tests.unit.factories import capture_file

STEP = "runs/run/incidents/step_00000003"
RECORD = capture_file(0, level="ids", num_microbatches=1)


def incident(folder: Path) -> Path:
    path = folder / STEP
    (path / "capture").mkdir(parents=True)
    (path / "incident.json").write_text("{}")
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str]:
    """Exit code and the one line on stderr."""
    with pytest.raises(SystemExit) as left:
        main(["reload", *words])
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (None, "rank00000.json is not there: --nanguard-capture full saves a step on every rank"),
        (RECORD, "holds digests alone; --nanguard-capture full saves the step"),
        (replace(RECORD, is_redacted=True), "its tensors were stripped by nanguard redact"),
    ],
)
def test_a_step_that_was_not_captured_exits_with_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record: CaptureFile | None, message: str
) -> None:
    path = incident(tmp_path)
    if record is not None:
        (path / file_name(0)).write_bytes(to_json(record))

    code, line = said(capsys, str(tmp_path), "train.py")

    assert (code, line.count("\n")) == (4, 1)
    assert line.startswith("nanguard: ")
    assert message in line


@pytest.mark.parametrize(
    ("script", "ending"),
    [
        ("import os, sys; print(sys.argv, os.environ['NANGUARD'])", ""),
        ("import sys; sys.exit(0)", " (SystemExit: 0)"),
        ("import sys; sys.exit('no data here')", " (SystemExit: no data here)"),
        ("raise ValueError('no such layer')", " (ValueError: no such layer)"),
    ],
)
def test_a_script_that_ends_without_a_step_exits_with_5(tmp_path: Path, script: str, ending: str) -> None:
    path = incident(tmp_path)
    (path / file_name(0)).write_bytes(to_json(replace(RECORD, level="step")))
    probe = f"""if True:
        import torch
        from pathlib import Path
        from megatron_nanguard.capture.tensor_file import write_tensors
        write_tensors(Path({str(path / "capture" / "rank00000.safetensors")!r}), {{"a": torch.ones(1)}})
        """
    subprocess.run([sys.executable, "-c", probe], check=True)
    (tmp_path / "train.py").write_text(script)

    command = [sys.executable, "-m", "megatron_nanguard", "reload", str(tmp_path), "train.py", "--lr", "1"]
    left = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert left.stdout == ("" if ending else "['train.py', '--lr', '1'] 0\n")
    assert left.stderr.splitlines()[-1] == f"nanguard: train.py ended without a training step{ending}"
    assert ("Traceback" in left.stderr) is ("ValueError" in ending)
    assert left.returncode == 5
