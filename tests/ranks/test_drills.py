"""Planted faults in every layout: rank sets, groups, names, losses and files against what was worked out by hand.

Every case of a launch has a step of its own, under policy skip; the first step is healthy and so are those of cases
without a fault: as many incidents as faults, no more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.cpurun import pretrain_script
from tests.import_server import Server
from tests.ranks.layouts import LAYOUTS, Layout
from tests.ranks.planted import GRID, MORE_ARGUMENTS, layout_b
from tests.ranks.planted.checks import check_incident, place
from tests.ranks.planted.incident import Case
from tests.ranks.run_files import RunFiles, read

pytestmark = pytest.mark.ranks

FIRST_CASE = 2
LOG_LINE = re.compile(r"iteration +(\d+)/.*?(?:grad norm: (\S+) .*?)?number of skipped iterations: +(\d+)")


def steps_of(cases: Sequence[Case]) -> dict[int, Case]:
    return dict(enumerate(cases, start=FIRST_CASE))


def specification(cases: Sequence[Case]) -> str:
    return ";".join(case.drill.format(step=step) for step, case in steps_of(cases).items() if case.drill)


def check_run(run: RunFiles, cases: Sequence[Case], layout: Layout) -> None:
    """The files beside the incidents; the drill is named in its own files and nowhere else."""
    planted = [case for case in cases if case.incident]
    assert read(run.path / "fingerprint.json", "fingerprint")["world_size"] == layout.nproc
    maps = {f"param_map_{place(layout, rank)}.json" for rank in range(layout.nproc)}
    assert {path.name for path in run.path.glob("param_map_*")} == maps
    statuses = run.statuses()
    assert [status["rank"] for status in statuses] == list(range(layout.nproc))
    for status in statuses:
        assert status["steps_guarded"] == len(cases) + 1
        assert status["alarms"] == status["incidents"] == len(planted)
    assert all(drill["fired"] for drill in run.drills())
    assert read(run.path / "drill.json", "drill")["spec"] == specification(cases)
    told = {path for path in run.path.rglob("*") if path.is_file() and b"drill" in path.read_bytes()}
    assert told == {run.path / "drill.json", *run.path.glob("drill/*")}


def check_log(out: str, cases: Sequence[Case]) -> None:
    """Steps with an incident are skipped, all others are applied with a finite norm."""
    logged = {int(match[1]): (match[2], int(match[3])) for match in LOG_LINE.finditer(out)}
    expected = {1: 0} | {step: int(case.incident is not None) for step, case in steps_of(cases).items()}
    assert {step: skipped for step, (_, skipped) in logged.items()} == expected
    assert all(math.isfinite(float(norm)) for norm, skipped in logged.values() if not skipped)


def grid() -> list[Any]:
    """All of A and one fault of each other layout by default, everything in the long grid."""
    by_default = [pytest.param(name, cases if name == "A" else cases[:1], id=name) for name, cases in GRID.items()]
    rest = [
        pytest.param(name, cases[1:], id=f"{name}-rest", marks=pytest.mark.long)
        for name, cases in GRID.items()
        if name != "A"
    ]
    return by_default + rest


def train_with_faults(ranks: Server, folder: Path, layout: Layout, cases: Sequence[Case]) -> RunFiles:
    """One launch, and every check of it."""
    chosen = layout.plus(
        *("--train-iters", str(len(cases) + 1)),
        *("--nanguard", "--nanguard-dir", str(folder), f"--nanguard-drill={specification(cases)}"),
        *("--nanguard-on-nonfinite", "skip", "--nanguard-max-skips", "99/99", "--nanguard-replay", "off"),
    )
    finished = ranks.run(layout.nproc, pretrain_script(), chosen.args, in_rank="megatron_nanguard:enable", cwd=folder)
    assert finished.code == 0, finished.out
    run = RunFiles.only_one_of(folder)
    assert run.incidents == [f"step_{step:08d}" for step, case in steps_of(cases).items() if case.incident]
    for step, case in steps_of(cases).items():
        if case.incident:
            check_incident(run, step, case.incident, layout)
    check_run(run, cases, layout)
    check_log(finished.out, cases)
    return run


@pytest.mark.parametrize(("name", "cases"), grid())
def test_planted_faults_are_reported_as_the_layout_demands(
    ranks: Server, tmp_path: Path, name: str, cases: Sequence[Case]
) -> None:
    train_with_faults(ranks, tmp_path, LAYOUTS[name].plus(*MORE_ARGUMENTS.get(name, ())), cases)


def test_one_norm_per_bucket_finds_the_same_ranks_and_names_what_can_still_be_counted(
    ranks: Server, tmp_path: Path
) -> None:
    # What another rank's shard held is still there to be counted, but for a norm that was added up over TP since.
    cases = (layout_b.WGRAD, unnamed(layout_b.NORM_WGRAD), layout_b.REDUCED)

    run = train_with_faults(ranks, tmp_path, LAYOUTS["B"].plus("--nanguard-norms", "bucket"), cases)

    assert any("--nanguard-norms bucket" in note for note in run.merged(FIRST_CASE)["notes"])


def unnamed(case: Case) -> Case:
    """The same fault, when it is unknown whose gradient it was before the reduction."""
    assert case.incident is not None
    return replace(case, incident=replace(case.incident, local=set()))


def test_a_drill_in_the_hook_of_a_module_is_traced_to_that_module(ranks: Server, tmp_path: Path) -> None:
    layout = LAYOUTS["D1"].plus(
        *("--train-iters", "2", "--nanguard", "--nanguard-dir", str(tmp_path), "--nanguard-on-nonfinite", "skip"),
        "--nanguard-drill=nan@step=2,rank=0,mb=1,phase=forward,module=decoder.layers.1.mlp",
    )

    finished = ranks.run(1, pretrain_script(), layout.args, in_rank="megatron_nanguard:enable", cwd=tmp_path)

    assert finished.code == 0, finished.out
    (origin,) = RunFiles.only_one_of(tmp_path).merged(2)["origin"]
    place = (origin["rank"], origin["microbatch"], origin["phase"], origin["module"])
    assert place == (0, 1, "forward", "decoder.layers.1.mlp")
