"""Stock Megatron trains in every layout on CPU ranks, and the layouts agree where they must."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from megatron_nanguard.cpurun import pretrain_script
from tests.import_server import Server
from tests.ranks.layouts import LAYOUTS, Layout
from tests.ranks.training_log import Step, steps_of

pytestmark = pytest.mark.ranks

ALWAYS = ("A", "D1")
NAMES = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in LAYOUTS]


def train(ranks: Server, folder: Path, layout: Layout, *more: str) -> list[Step]:
    return steps_of(ranks.run(layout.nproc, pretrain_script(), layout.plus(*more).args, cwd=folder))


def assert_same(found: list[Step], expected: list[Step]) -> None:
    """Equal up to the order of sums in fp32."""
    assert [step.loss for step in found] == pytest.approx([step.loss for step in expected], abs=2e-6)
    assert [step.grad_norm for step in found] == pytest.approx([step.grad_norm for step in expected], abs=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_three_steps_with_finite_losses(ranks: Server, tmp_path: Path, name: str) -> None:
    steps = train(ranks, tmp_path, LAYOUTS[name])

    assert [step.number for step in steps] == [1, 2, 3]
    assert all(math.isfinite(step.loss) and 0 < step.grad_norm < math.inf for step in steps)
    assert steps[0].loss == pytest.approx(math.log(128), abs=0.3), "an untrained model guesses"
    assert steps[2].loss < steps[0].loss


def test_one_run_leaves_no_trace_in_the_next(ranks: Server, tmp_path: Path) -> None:
    plain = train(ranks, tmp_path, LAYOUTS["D1"])

    evaluated = train(ranks, tmp_path, LAYOUTS["D1"], "--eval-iters", "1", "--eval-interval", "2")

    assert evaluated == plain


def test_context_parallelism_is_announced_once(ranks: Server, tmp_path: Path) -> None:
    layout = Layout(2, LAYOUTS["D1"].plus("--context-parallel-size", "2", "--train-iters", "1").args)

    finished = ranks.run(2, pretrain_script(), layout.args, cwd=tmp_path)

    assert finished.code == 0, finished.out
    assert finished.out.count("a plain PyTorch one takes its place") == 1


@pytest.mark.long
def test_context_parallelism_agrees_with_one_rank(ranks: Server, tmp_path: Path) -> None:
    # Learned positions would start elsewhere: before them Megatron warms up with draws of seq_length / CP numbers.
    layout = LAYOUTS["D1"].plus("--position-embedding-type", "rope")
    one = train(ranks, tmp_path, layout)

    two = train(ranks, tmp_path, Layout(2, layout.args), "--context-parallel-size", "2")

    assert_same(two, one)


@pytest.mark.long
def test_data_parallelism_sees_the_same_global_batches_as_one_rank(ranks: Server, tmp_path: Path) -> None:
    one = train(ranks, tmp_path, LAYOUTS["D1"], "--global-batch-size", "16")

    two = train(ranks, tmp_path, LAYOUTS["D2"])

    assert_same(two, one)


@pytest.mark.long
def test_full_recompute_changes_no_bit(ranks: Server, tmp_path: Path) -> None:
    assert train(ranks, tmp_path, LAYOUTS["AR"]) == train(ranks, tmp_path, LAYOUTS["A"])
