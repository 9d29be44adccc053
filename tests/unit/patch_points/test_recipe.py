"""The recipe of CONTRIBUTING.md for a patch point, followed to the letter in a copy of the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import megatron_nanguard

PACKAGE = Path(megatron_nanguard.__file__).parent

NEW_FILE = '''"""See when the learning rate moves on."""

from __future__ import annotations

from collections.abc import Callable

from megatron_nanguard.patching import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper


def make_wrapper(rate_moves: Callable[[int], None]) -> Wrapper:
    """``rate_moves(increment)`` is called before the scheduler's step."""

    def step(wrapped: Wrapped, instance: object, args: Args, kwargs: Kwargs) -> object:
        rate_moves(args[0] if args else kwargs["increment"])
        return wrapped(*args, **kwargs)

    return step


POINT = PatchPoint(
    name="scheduler_step",
    group="scheduler",
    targets=(
        Target(
            "megatron.core.optimizer_param_scheduler:OptimizerParamScheduler.step",
            since="0.9",
            parameters=("self", "increment"),
        ),
    ),
    why="a test",
    lost="nothing",
    make_wrapper=make_wrapper,
)
'''

USE = """
import torch
from megatron_nanguard.guard.hooks import Hooks

hooks = Hooks()
hooks.install()
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

inside = vars(OptimizerParamScheduler)["step"]
inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
scheduler = OptimizerParamScheduler(inner, 0.0, 1.0, 0.0, 2, 4, "linear", 0.0, 0.0, 0, "constant")
scheduler.step(increment=2)
assert hooks.guard.counts["rate"] == 2, hooks.guard.counts
assert hooks.engine.declined == {}, hooks.engine.declined
assert hooks.remove() == []
assert vars(OptimizerParamScheduler)["step"] is inside.__wrapped__
scheduler.step(increment=2)
assert hooks.guard.counts["rate"] == 2
assert scheduler.num_steps == 4
"""


def insert(file: Path, before: str, line: str) -> None:
    """Add one line in front of the only one that begins with `before`."""
    lines = file.read_text().split("\n")
    (number,) = (number for number, each in enumerate(lines) if each.startswith(before))
    file.write_text("\n".join([*lines[:number], line, *lines[number:]]))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package, to be edited."""
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / PACKAGE.name


@pytest.mark.timeout(180)
def test_one_file_one_line_in_the_table_and_one_handler_make_a_patch_point(copy: Path) -> None:
    (copy / "patch_points/scheduler_step.py").write_text(NEW_FILE)
    insert(copy / "patch_points/__init__.py", "    start_grad_sync,", "    scheduler_step,")
    insert(copy / "patch_points/__init__.py", "    start_grad_sync.POINT,", "    scheduler_step.POINT,")
    handler = "lambda increment: self.counts.update(rate=increment)"
    insert(copy / "guard/guard.py", '            "start_grad_sync":', f'            "scheduler_step": {handler},')
    command = [sys.executable, "-c", USE]
    done = subprocess.run(command, cwd=copy.parent, env={"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
