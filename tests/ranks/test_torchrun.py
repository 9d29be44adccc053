"""`torchrun ... -m megatron_nanguard SCRIPT`: every rank runs the script as if torchrun had been given it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

NPROC = 2
TELL = """
import json, os, sys, torch
told = {"argv": sys.argv, "path": sys.path[0], "name": __name__, "cuda": torch.cuda.is_available()}
with open("rank" + os.environ["RANK"] + ".json", "w") as file:
    json.dump(told, file)
sys.exit(3 if "--fail" in sys.argv else 0)
"""
ARGS = ("--nanguard", "--", "-x", "a b")


def torchrun(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Start two ranks from a folder that holds the script `train.py`."""
    (folder / "train.py").write_text(TELL, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NPROC}"]
    return subprocess.run([*command, *args], capture_output=True, text=True, cwd=folder, check=False)


def told(folder: Path) -> list[dict[str, object]]:
    """What each rank saw, by rank."""
    return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(NPROC)]


def test_the_script_sees_what_torchrun_alone_would_show_it(tmp_path: Path) -> None:
    plain, guarded = tmp_path / "plain", tmp_path / "guarded"
    for folder, front in ((plain, ()), (guarded, ("-m", "megatron_nanguard"))):
        folder.mkdir()
        assert torchrun(folder, *front, "train.py", *ARGS).returncode == 0
    expected = {"argv": ["train.py", *ARGS], "name": "__main__", "cuda": False}
    assert told(plain) == [{**expected, "path": str(plain)}] * NPROC
    assert told(guarded) == [{**expected, "path": str(guarded)}] * NPROC


def test_on_cpu_the_ranks_see_a_cuda_device_and_the_exit_code_is_the_script_s(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "-m", "megatron_nanguard", "--cpu", "train.py", *ARGS, "--fail")
    expected = {"argv": ["train.py", *ARGS, "--fail"], "path": str(tmp_path), "name": "__main__", "cuda": True}
    assert told(tmp_path) == [expected] * NPROC
    assert done.returncode == 1
    assert "exitcode  : 3" in done.stderr
