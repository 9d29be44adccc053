"""Faults in real operators, end to end: named on the right rank, each other rank reported as infected or clean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.import_server import Finished, Server
from tests.ranks.layouts import FULL_RECOMPUTE, LAYOUTS, Layout
from tests.ranks.planted import MORE_ARGUMENTS
from tests.ranks.planted.checks import place
from tests.ranks.planted.origins import (
    C4_BACKWARD,
    C4_FORWARD,
    D_DEEP,
    G_BACKWARD,
    HEALTHY_MASK,
    REAL_FAULTS,
    Begins,
    RealFault,
)
from tests.ranks.run_files import RunFiles
from tests.ranks.training_log import steps_of

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("real_faults.py")
GUARD = "megatron_nanguard:enable"
BY_DEFAULT = ("A", "D1")
FIRST_FAULT = 2
ELAPSED = re.compile(r"elapsed time per iteration \(ms\): (\S+)")
TOO_LONG_MS = 30_000
"""Far above what a step with an incident takes; the goal of 10 s is for the benchmark."""


def train(ranks: Server, layout: Layout, folder: Path, faults: str, *more: str, **env: str) -> Finished:
    """A run in which incidents are skipped."""
    folder.mkdir(exist_ok=True)
    guarded = layout.plus(
        *("--nanguard", "--nanguard-dir", str(folder), "--nanguard-on-nonfinite", "skip"),
        *("--nanguard-max-skips", "99/99", *more),
    )
    variables = {"FAULTS": faults, **env}
    finished = ranks.run(layout.nproc, SCRIPT, guarded.args, env=variables, in_rank=GUARD, cwd=folder)
    assert finished.code == 0, finished.out
    return finished


def at_steps(cases: Sequence[RealFault]) -> str:
    """Each case at a step of its own; the first step is healthy."""
    steps = enumerate(cases, start=FIRST_FAULT)
    return ";".join(f"{step}={fault}" for step, case in steps for fault in case.faults)


def check(run: RunFiles, step: int, case: RealFault, layout: Layout) -> None:
    """What the incident says of a case."""
    merged = run.merged(step)
    assert [described(origin) for origin in merged["origin"]] == [expected(one, layout) for one in case.origins]
    infected = {
        one["rank"]: (one["call"].partition(" no. ")[0], one["group"], tuple(one["from"])) for one in merged["infected"]
    }
    assert infected == case.carried
    of_origin = {rank for one in case.origins for rank in (one.rank, *one.ranks)}
    if case.origins:
        assert {*merged["ranks"]["clean"]} == {*range(layout.nproc)} - infected.keys() - of_origin
    assert merged["causes"]
    if case.cause:
        assert merged["causes"][0]["cause"] == case.cause
    came_back = "yes" if case.comes_back else "no"
    assert {one["came_back"] for one in merged["replay"]["passes"]} == {came_back}
    for rank, own in enumerate(run.postmortems(step).values()):
        replay = own["replay"]
        assert (replay["done"], replay["why_not"]) == (True, ""), f"rank {rank}"
        assert replay["exact"] is case.comes_back, f"rank {rank}: {replay}"
        of_incident = [stage for stage in replay["stages"] if not stage.startswith("loss scale / 256: ")]
        assert of_incident[0].startswith("plain: ")
    assert merged["replay"]["done"] is True


def described(origin: dict[str, Any]) -> dict[str, Any]:
    """The part of an origin that is stated by hand."""
    line = origin["source_line"]
    facts = origin["facts"]
    return {
        **{key: origin[key] for key in ("rank", "coords", "microbatch", "phase", "module", "operator", "pattern")},
        "function": None if line is None else line.partition(" in ")[2],
        "nan_count": None if facts is None else facts["nan_count"],
        "ranks": tuple(origin["ranks"]),
    }


def expected(begins: Begins, layout: Layout) -> dict[str, Any]:
    return {
        **{key: getattr(begins, key) for key in ("rank", "microbatch", "phase", "module", "operator", "pattern")},
        "coords": place(layout, begins.rank),
        "function": begins.function,
        "nan_count": begins.nan_count,
        "ranks": begins.ranks,
    }


def train_with_faults(ranks: Server, folder: Path, layout: Layout, cases: Sequence[RealFault]) -> None:
    """One launch, a case per step, and every check of it."""
    finished = train(ranks, layout.plus("--train-iters", str(len(cases) + 1)), folder, at_steps(cases))

    run = RunFiles.only_one_of(folder)
    steps = dict(enumerate(cases, start=FIRST_FAULT))
    assert run.incidents == [f"step_{step:08d}" for step, case in steps.items() if case is not HEALTHY_MASK]
    for step, case in steps.items():
        if case is not HEALTHY_MASK:
            check(run, step, case, layout)
            if case.origins:
                first = case.origins[0]
                said = (
                    f"It began on rank {first.rank}, {first.phase} of micro-batch {first.microbatch}: {first.operator}"
                )
                assert said in finished.out
    assert max(map(float, ELAPSED.findall(finished.out))) < TOO_LONG_MS


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.long) for name in REAL_FAULTS]
)
def test_a_fault_is_named_and_every_other_rank_accounted_for(ranks: Server, tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name].plus(*MORE_ARGUMENTS.get(name, ()))
    train_with_faults(ranks, tmp_path, layout, REAL_FAULTS[name])


@pytest.mark.parametrize(
    "case", [pytest.param(C4_BACKWARD, id="backward"), pytest.param(C4_FORWARD, id="forward", marks=pytest.mark.long)]
)
def test_routing_decides_which_ranks_of_an_exchange_a_fault_reaches(
    ranks: Server, tmp_path: Path, case: RealFault
) -> None:
    layout = replace(LAYOUTS["C"].plus("--expert-model-parallel-size", "4"), ep=4)
    train_with_faults(ranks, tmp_path, layout, [case])


def test_a_backward_in_a_second_thread_is_attributed_rightly(ranks: Server, tmp_path: Path) -> None:
    train_with_faults(ranks, tmp_path, LAYOUTS["D1"].plus(*FULL_RECOMPUTE), D_DEEP)


def test_a_mask_of_infinities_is_no_fault_and_changes_nothing(ranks: Server, tmp_path: Path) -> None:
    everywhere = at_steps([HEALTHY_MASK, HEALTHY_MASK])

    masked, plain = (
        train(ranks, LAYOUTS["D1"], tmp_path / name, faults) for name, faults in (("m", everywhere), ("p", ""))
    )

    assert steps_of(masked) == steps_of(plain) != []
    assert RunFiles.only_one_of(tmp_path / "m").incidents == []


def test_gradients_that_are_bad_at_any_scale_are_traced_at_their_first_step(ranks: Server, tmp_path: Path) -> None:
    # Step 1 is applied, so that the search for a scale is over; without a check it would take eight skips in a row.
    layout = LAYOUTS["G"].plus("--initial-loss-scale", "1024", "--train-iters", "3")

    train(ranks, layout, tmp_path, f"2={G_BACKWARD.faults[0]}")

    run = RunFiles.only_one_of(tmp_path)
    assert run.incidents == ["step_00000002"]
    check(run, 2, G_BACKWARD, layout)
    assert run.merged(2)["replay"]["lower_scale"] == "bad"
    assert run.merged(2)["scaler"] == {"in_search": False, "just_raised": False, "skips_in_a_row": 0}
    assert [status["scale_checks"] for status in run.statuses()] == [1] * 8


@pytest.mark.long
def test_without_a_check_gradients_alone_are_traced_at_the_nth_skip_of_the_loss_scaler(
    ranks: Server, tmp_path: Path
) -> None:
    # Step 1 is applied and raises the scale; at the next one, too, no step was applied when it overflows.
    layout = LAYOUTS["G"].plus("--initial-loss-scale", "1024", "--loss-scale-window", "1", "--train-iters", "3")

    train(ranks, layout, tmp_path, f"2+3={G_BACKWARD.faults[0]}", "--nanguard-scaler-skips", "2")

    run = RunFiles.only_one_of(tmp_path)
    assert run.incidents == ["step_00000003"]
    check(run, 3, G_BACKWARD, layout)
    assert run.merged(3)["scaler"] == {"in_search": False, "just_raised": True, "skips_in_a_row": 1}
