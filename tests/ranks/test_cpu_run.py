"""`nanguard cpu-run`, from the command line to the exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

SCRIPT = """
import os, sys, torch
print(sys.argv[1:], torch.cuda.is_available(), "megatron.training" in sys.modules)
sys.exit(7 * int(os.environ["RANK"]))
"""


def test_arguments_pass_untouched_and_the_exit_code_comes_back(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    command = ["-m", "megatron_nanguard", "cpu-run", "--nproc", "2", "--show", "1", "script.py"]

    done = subprocess.run(
        [sys.executable, *command, "--nproc", "9", "--", "-x"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )

    assert done.stdout == "[rank1] ['--nproc', '9', '--', '-x'] True True\n"
    assert done.returncode == 7, done.stderr
    assert "[cpu-run] rank 1 failed first (exit code 7)" in done.stderr
