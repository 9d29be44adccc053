"""`nanguard run SCRIPT`: the script is the main program, as if Python had been given it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_nanguard.cli import main

TELL = """
import json, os, sys
print(json.dumps([__name__, sys.argv, sys.path[0], os.path.abspath(sys.modules["__main__"].__file__)]))
print(sorted(m for m in ("torch", "megatron") if m in sys.modules))
print("megatron_nanguard" in sys.modules)
"""


def run_script(folder: Path, text: str, *args: str, module: bool = True) -> subprocess.CompletedProcess[str]:
    """Write a script into a folder and run it from there under `python -m megatron_nanguard`, or plainly."""
    (folder / "train.py").write_text(text, encoding="utf-8")
    front = ["-m", "megatron_nanguard"] if module else []
    command = [sys.executable, *front, "train.py", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def test_the_script_sees_the_argv_and_path_of_a_plain_python_run(tmp_path: Path) -> None:
    args = ("--nanguard", "--", "--lr", "1e-3", "-x", "a b")
    plain = run_script(tmp_path, TELL, *args, module=False)
    guarded = run_script(tmp_path, TELL, *args)
    assert guarded.stderr == ""
    seen = json.loads(guarded.stdout.splitlines()[0])
    assert seen == ["__main__", ["train.py", *args], str(tmp_path), str(tmp_path / "train.py")]
    assert seen == json.loads(plain.stdout.splitlines()[0])


def test_the_hooks_are_installed_without_importing_torch_or_megatron(tmp_path: Path) -> None:
    assert run_script(tmp_path, TELL).stdout.splitlines()[1:] == ["[]", "True"]


def test_the_script_can_import_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("GREETING = 'next door'", encoding="utf-8")
    assert run_script(tmp_path, "from neighbour import GREETING\nprint(GREETING)").stdout == "next door\n"


def test_the_exit_code_of_the_script_is_kept(tmp_path: Path) -> None:
    assert run_script(tmp_path, "raise SystemExit(65)").returncode == 65


def test_a_crash_of_the_script_keeps_its_traceback(tmp_path: Path) -> None:
    done = run_script(tmp_path, "def step():\n    raise ValueError('bad batch')\nstep()")
    assert done.returncode == 1
    assert 'train.py", line 2, in step' in done.stderr
    assert done.stderr.endswith("ValueError: bad batch\n")


def test_a_missing_script_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["run", "no_such_script.py"])
    assert left.value.code == 2
    assert "'no_such_script.py' does not exist" in capsys.readouterr().err


def test_an_unknown_nanguard_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["run", "--gpu", "train.py"])
    assert left.value.code == 2
    assert "No such option" in capsys.readouterr().err


def test_a_cpu_rank_without_torchrun_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if name != "RANK"}
    command = [sys.executable, "-m", "megatron_nanguard", "--cpu", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("nanguard: run --cpu: RANK is not set")
    assert len(done.stderr.splitlines()) == 1
