"""A captured step in a fresh job: the same gradients bit for bit where the fault is in the model or the data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.import_server import Finished, Server
from tests.ranks.layouts import LAYOUTS, Layout
from tests.ranks.run_files import RunFiles, read

pytestmark = pytest.mark.ranks

FAULTS = {"A": "1:1", "AR": "7:2", "B": "3:1", "C": "2:1", "D1": "0:1", "D2": "1:1", "E": "3:5", "F": "5:2", "G": "6:2"}
FAULTS["H"] = "3:1"
"""Rank and layer of one bad element in one gradient of the second micro-batch: all other gradients are finite."""
BY_DEFAULT = ("A", "B")
SUBMODULE = {"C": "mlp.router", "F": "mlp.router"}
SCRIPT = Path(__file__).with_name("real_faults.py")
NANGUARD = Path(__file__).parents[2] / "scripts" / "nanguard.py"
LINE = re.compile(r"rank (\d+), step (\d+): (\d+) of (\d+) gradients are the same bit for bit")
FC1 = "decoder.layers.1.mlp.linear_fc1.weight"


def captured(ranks: Server, layout: Layout, folder: Path, faults: str = "", *more: str) -> RunFiles:
    """Two steps; the second one is captured in full, and ends the run."""
    args = layout.plus("--train-iters", "2", "--nanguard", "--nanguard-capture", "full", *more).args
    finished = ranks.run(
        layout.nproc, SCRIPT, args, env={"FAULTS": faults}, in_rank="megatron_nanguard:enable", cwd=folder
    )
    assert finished.code == 65, finished.out
    return RunFiles.only_one_of(folder / "nanguard")


def reloaded(ranks: Server, layout: Layout, folder: Path, faults: str = "", *more: str) -> Finished:
    return ranks.run(layout.nproc, NANGUARD, ("reload", "nanguard", *more), env={"FAULTS": faults}, cwd=folder)


def compared(finished: Finished) -> dict[int, tuple[int, int]]:
    """(gradients that are the same, all gradients) by rank."""
    found = [tuple(map(int, match)) for match in LINE.findall(finished.out)]
    assert {step for _, step, _, _ in found} == {2}
    return {rank: (same, number) for rank, _, same, number in found}


def records(run: RunFiles) -> list[dict[str, Any]]:
    return [read(path, "capture") for path in sorted(run.path.glob("incidents/*/capture/rank*.json"))]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.long) for name in FAULTS]
)
def test_every_gradient_of_every_rank_is_the_same_in_a_fresh_job(ranks: Server, tmp_path: Path, name: str) -> None:
    layout, faults = LAYOUTS[name], f"2=wgrad:{FAULTS[name]}:{SUBMODULE.get(name, 'mlp.linear_fc1')}:1"
    run = captured(ranks, layout, tmp_path, faults)

    finished = reloaded(ranks, layout, tmp_path, faults)

    assert finished.code == 0, finished.out
    found, saved = compared(finished), records(run)
    assert sorted(found) == list(range(layout.nproc))
    assert all(same == number for same, number in found.values())
    assert [len(record["gradients"]) for record in saved] == [number for _, (_, number) in sorted(found.items())]
    # That a NaN everywhere equals a NaN everywhere would show nothing.
    bad = [norm for record in saved for norm in record["norms"].values() if isinstance(norm, dict)]
    assert len(bad) == 1


def test_a_fault_that_does_not_come_back_differs_where_it_was_and_where_the_reduction_took_it(
    ranks: Server, tmp_path: Path
) -> None:
    layout = LAYOUTS["D2"]
    drill = f"--nanguard-drill=nan@step=2,rank=0,phase=wgrad,param={FC1}"
    run = captured(ranks, layout, tmp_path, "", drill)

    finished = reloaded(ranks, layout, tmp_path)

    assert finished.code == 1, finished.out
    assert compared(finished) == {0: (51, 52), 1: (51, 52)}
    assert set(re.findall(r"\[(rank\d)\]   differs  (.*)", finished.out)) == {
        ("rank0", f"{FC1}, already before the reduction"),
        ("rank1", FC1),
    }
    assert "nan@step" not in json.dumps(json.loads((run.path / "fingerprint.json").read_text()))


def test_another_argument_is_named_and_its_gradients_differ(ranks: Server, tmp_path: Path) -> None:
    layout, faults = LAYOUTS["D1"], "2=wgrad:0:1:mlp.linear_fc1:1"
    captured(ranks, layout, tmp_path, faults)

    finished = reloaded(ranks, layout, tmp_path, faults, "--hidden-dropout", "0.1")

    assert finished.code == 1, finished.out
    assert re.findall(r"\] argument (.*)", finished.out) == ["hidden_dropout is 0.1 here, it was 0.0"]
    assert compared(finished)[0][0] < 52


def test_a_job_of_another_layout_is_refused_in_one_line(ranks: Server, tmp_path: Path) -> None:
    layout, faults = LAYOUTS["D2"], "2=wgrad:1:1:mlp.linear_fc1:1"
    captured(ranks, layout, tmp_path, faults)
    more = ("--tensor-model-parallel-size", "2", "--global-batch-size", "8")

    finished = reloaded(ranks, layout, tmp_path, faults, *more)

    assert finished.code == 5, finished.out
    assert "rank 0 was tp0pp0dp0 of 2 ranks (TP1 CP1 PP1 EP1) when the step was saved" in finished.out
    assert "Traceback" not in finished.out
