"""Stock Megatron trains in every layout on CPU ranks."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from megatron_nanguard.cpurun import pretrain_script
from megatron_nanguard.cpurun.job import Finished
from megatron_nanguard.cpurun.server import Server
from tests.ranks.layouts import LAYOUTS, Layout

pytestmark = pytest.mark.ranks

ALWAYS = ("A", "D1")
PRETRAIN = pretrain_script()


def losses_and_norms(finished: Finished) -> list[tuple[float, float]]:
    """(lm loss, gradient norm) of each step of a training log."""
    assert finished.code == 0, finished.out
    found = re.findall(r"lm loss: (\S+) .*? grad norm: (\S+) ", finished.out)
    return [(float(loss), float(norm)) for loss, norm in found]


def train(ranks: Server, layout: Layout, *more: str, cwd: Path) -> list[tuple[float, float]]:
    return losses_and_norms(ranks.run(layout.nproc, PRETRAIN, layout.plus(*more).args, cwd=cwd))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in LAYOUTS]
)
def test_layout_trains_three_steps_with_finite_losses(ranks: Server, tmp_path: Path, name: str) -> None:
    steps = train(ranks, LAYOUTS[name], cwd=tmp_path)

    assert len(steps) == 3
    assert all(math.isfinite(loss) and math.isfinite(norm) and norm > 0 for loss, norm in steps)
    assert steps[2][0] < steps[0][0], "three steps on a walk over 128 tokens lower the loss"
    assert steps[0][0] == pytest.approx(math.log(128), abs=0.3), "an untrained model guesses"


@pytest.mark.long
def test_context_parallel_agrees_with_one_rank(ranks: Server, tmp_path: Path) -> None:
    # Learned positions would start elsewhere: before them Megatron warms up with draws of seq_length / CP numbers.
    layout = LAYOUTS["D1"].plus("--position-embedding-type", "rope")
    one = train(ranks, layout, cwd=tmp_path)

    two = train(ranks, Layout(2, layout.args), "--context-parallel-size", "2", cwd=tmp_path)

    assert two == [(pytest.approx(loss, abs=2e-6), pytest.approx(norm, abs=2e-3)) for loss, norm in one]


@pytest.mark.long
def test_data_parallel_sees_the_same_global_batches_as_one_rank(ranks: Server, tmp_path: Path) -> None:
    one = train(ranks, LAYOUTS["D1"].plus("--global-batch-size", "16"), cwd=tmp_path)

    two = train(ranks, LAYOUTS["D2"], cwd=tmp_path)

    assert two == [(pytest.approx(loss, abs=2e-6), pytest.approx(norm, abs=2e-3)) for loss, norm in one]


@pytest.mark.long
def test_full_recompute_changes_no_bit(ranks: Server, tmp_path: Path) -> None:
    assert train(ranks, LAYOUTS["AR"], cwd=tmp_path) == train(ranks, LAYOUTS["A"], cwd=tmp_path)


def test_two_runs_of_one_server_agree(ranks: Server, tmp_path: Path) -> None:
    evaluation = ("--eval-iters", "1", "--eval-interval", "2")

    plain = train(ranks, LAYOUTS["D1"], cwd=tmp_path)
    evaluated = train(ranks, LAYOUTS["D1"], *evaluation, cwd=tmp_path)

    assert plain == evaluated, "neither the first run nor evaluation leaves a trace in the second"


def test_context_parallel_stand_in_is_announced_once(ranks: Server, tmp_path: Path) -> None:
    layout = Layout(2, (*LAYOUTS["D1"].args, "--context-parallel-size", "2", "--train-iters", "1"))

    finished = ranks.run(2, PRETRAIN, layout.args, cwd=tmp_path)

    assert finished.code == 0, finished.out
    assert finished.out.count("a plain PyTorch one takes its place") == 1
