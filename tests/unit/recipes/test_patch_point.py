"""The recipe of CONTRIBUTING.md for a patch point, followed to the letter in a copy of the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.recipes.project_copy import ProjectCopy

NEW_FILE = '''"""See when the learning rate moves on."""

from __future__ import annotations

from collections.abc import Callable

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper


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


@pytest.mark.timeout(180)
def test_one_file_one_line_in_the_table_and_one_handler_make_a_patch_point(tmp_path: Path) -> None:
    project = ProjectCopy(tmp_path)
    points = "megatron_nanguard/patch_points/__init__.py"
    project.write("megatron_nanguard/patch_points/scheduler_step.py", NEW_FILE)
    project.insert(points, "    start_grad_sync,", "    scheduler_step,")
    project.insert(
        "megatron_nanguard/patch_points/__init__.py", "    start_grad_sync.POINT,", "    scheduler_step.POINT,"
    )
    handler = '            "scheduler_step": lambda increment: self.counts.update(rate=increment),'
    project.insert("megatron_nanguard/guard/guard.py", '            "start_grad_sync":', handler)

    done = project.python("-c", USE)

    assert done.returncode == 0, done.stderr
