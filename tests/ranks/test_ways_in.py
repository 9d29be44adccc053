"""Every way to start a guarded run, and what the command line says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.cpurun import pretrain_script
from tests.import_server import Server
from tests.ranks.layouts import LAYOUTS

pytestmark = pytest.mark.ranks

OWN_TRAINER = Path(__file__).with_name("own_trainer.py")
FORWARDING = Path(__file__).parents[2] / "scripts" / "pretrain_gpt.py"
ENABLE = "megatron_nanguard:enable"
ONE_STEP = ("--train-iters", "1")
THIS_PYTHON = (sys.executable, "-m")
MAPPED = """
from megatron_nanguard import cpurun
cpurun.install()
from megatron_nanguard.cpurun import preload, pretrain_gpt
preload.preload()
pretrain_gpt.main()
"""
IMPORTING = "import megatron_nanguard\n" + MAPPED
ON_AGAIN = "import megatron_nanguard\nmegatron_nanguard.enable()\n" + MAPPED
"""The import server has imported us with NANGUARD=0; a script in it calls what the import would call."""


def guarded_steps(folder: Path) -> list[tuple[int, int]]:
    """(rank, steps guarded) of each status file under a working directory."""
    statuses = [json.loads(path.read_text()) for path in folder.glob("nanguard/runs/*/status/*.json")]
    return sorted((status["rank"], status["steps_guarded"]) for status in statuses)


def start(folder: Path, command: Sequence[str | Path], **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a folder, as one would in a shell."""
    shell = {name: value for name, value in os.environ.items() if not name.startswith("NANGUARD")}
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**shell, "OMP_NUM_THREADS": "1", **env},
    )


def alone() -> dict[str, str]:
    """Environment of the only rank of a world."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def test_a_script_that_begins_with_the_import(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(IMPORTING, encoding="utf-8")
    args = LAYOUTS["D1"].plus(*ONE_STEP, "--nanguard").args

    done = start(tmp_path, [sys.executable, script, *args], **alone())

    assert done.returncode == 0, done.stderr
    assert guarded_steps(tmp_path) == [(0, 1)]


def test_nanguard_run(tmp_path: Path) -> None:
    args = LAYOUTS["D1"].plus(*ONE_STEP, "--nanguard").args

    done = start(tmp_path, [*THIS_PYTHON, "megatron_nanguard", "run", "--cpu", FORWARDING, *args], **alone())

    assert done.returncode == 0, done.stderr
    assert guarded_steps(tmp_path) == [(0, 1)]


def test_torchrun_with_the_module_and_a_script_nobody_edited(tmp_path: Path) -> None:
    args = LAYOUTS["D2"].plus(*ONE_STEP, "--nanguard").args
    torchrun = (*THIS_PYTHON, "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

    done = start(tmp_path, [*torchrun, "-m", "megatron_nanguard", "--cpu", FORWARDING, *args])

    assert done.returncode == 0, done.stderr
    assert guarded_steps(tmp_path) == [(0, 1), (1, 1)]


def test_nanguard_cpu_run(tmp_path: Path) -> None:
    args = LAYOUTS["D2"].plus(*ONE_STEP, "--nanguard").args

    done = start(tmp_path, [*THIS_PYTHON, "megatron_nanguard", "cpu-run", "--nproc", "2", FORWARDING, *args])

    assert done.returncode == 0, done.stdout + done.stderr
    assert guarded_steps(tmp_path) == [(0, 1), (1, 1)]


@pytest.mark.parametrize("own_groups", ["", "1"], ids=["initialize_model_parallel", "groups of its own"])
def test_a_trainer_without_arguments_is_switched_on_by_the_environment(
    ranks: Server, tmp_path: Path, own_groups: str
) -> None:
    env = {"NANGUARD": "1", "OWN_GROUPS": own_groups}

    finished = ranks.run(2, OWN_TRAINER, env=env, in_rank=ENABLE, cwd=tmp_path)

    assert finished.code == 0, finished.out
    assert guarded_steps(tmp_path) == [(0, 2), (1, 2)]


@pytest.mark.parametrize("own_groups", ["", "1"], ids=["initialize_model_parallel", "groups of its own"])
def test_a_nan_in_a_trainer_without_arguments_is_found(ranks: Server, tmp_path: Path, own_groups: str) -> None:
    drill = "nan@step=2,rank=1,mb=1,phase=backward,module=decoder.layers.0.mlp"
    env = {"NANGUARD": "1", "NANGUARD_DRILL": drill, "OWN_GROUPS": own_groups}

    finished = ranks.run(2, OWN_TRAINER, env=env, in_rank=ENABLE, cwd=tmp_path)

    assert finished.codes == {0: 65, 1: 65}, finished.out
    [incident] = read_incidents(tmp_path)
    assert (incident["step"], incident["ranks"]["bad_before"]) == (2, [1])


def read_incidents(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("nanguard/runs/*/incidents/*/incident.json")]


def test_a_trainer_is_left_alone_without_the_switch(ranks: Server, tmp_path: Path) -> None:
    finished = ranks.run(2, OWN_TRAINER, in_rank=ENABLE, cwd=tmp_path)

    assert finished.code == 0, finished.out
    assert list(tmp_path.iterdir()) == []


def test_the_environment_switches_a_pretrain_script_on_too(ranks: Server, tmp_path: Path) -> None:
    args = LAYOUTS["D1"].plus(*ONE_STEP).args

    finished = ranks.run(1, pretrain_script(), args, env={"NANGUARD": "1"}, in_rank=ENABLE, cwd=tmp_path)

    assert finished.code == 0, finished.out
    assert guarded_steps(tmp_path) == [(0, 1)]


def test_nanguard_0_beats_the_flag(ranks: Server, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ON_AGAIN, encoding="utf-8")
    args = LAYOUTS["D1"].plus(*ONE_STEP, "--nanguard", "--nanguard-on-nonfinite", "skip").args

    finished = ranks.run(1, script, args, env={"NANGUARD": "0"}, cwd=tmp_path)

    assert finished.code == 0, finished.out
    assert list(tmp_path.iterdir()) == [script]


def test_help_of_a_pretrain_script_shows_the_options(ranks: Server, tmp_path: Path) -> None:
    finished = ranks.run(1, pretrain_script(), ["--help"], in_rank=ENABLE, cwd=tmp_path)

    assert finished.code == 0
    shown = "\n".join(finished.lines(0))
    for option in ("--nanguard ", "--nanguard-dir DIR", "--nanguard-on-nonfinite {abort,skip,continue}"):
        assert option in shown


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("--nanguard", "--nanguard-on-nonfinite", "explode"),
            "error: --nanguard-on-nonfinite: 'explode' is not one of abort, skip, continue",
        ),
        (("--nanguard", "--nanguard-colour", "red"), "error: unrecognized arguments: --nanguard-colour red"),
        (("--nanguard-drill", "nan@step=1,phase=backward"), "error: --nanguard-drill needs --nanguard"),
    ],
    ids=["unknown value", "unknown option", "contradiction"],
)
def test_a_bad_option_is_an_argparse_error(ranks: Server, tmp_path: Path, words: tuple[str, ...], error: str) -> None:
    finished = ranks.run(1, pretrain_script(), LAYOUTS["D1"].plus(*words).args, in_rank=ENABLE, cwd=tmp_path)

    assert finished.code == 2
    assert error in "\n".join(finished.lines(0))
