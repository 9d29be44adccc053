"""Faults in kernels that no dispatcher sees: one origin each, by rank, micro-batch, phase, module and region."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.cpurun import pretrain_script
from tests.import_server import Finished, Server
from tests.opaque import kernels
from tests.ranks.planted.opaque import RUNS, Cell, Run
from tests.ranks.run_files import RunFiles
from tests.ranks.training_log import steps_of

pytestmark = pytest.mark.ranks

FIRST_CASE = 2
SECONDS = 220.0
BY_DEFAULT = ("D2",)
EVERY = [pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.long) for name in RUNS]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile once, before several ranks want to."""
    kernels.library()


def train(ranks: Server, run: Run, folder: Path, **env: str) -> Finished:
    """A run in which incidents are skipped, one fault per step."""
    chosen = run.layout.plus(
        *("--spec", "tests.opaque.spec", "layer_spec", "--train-iters", str(len(run.cells) + FIRST_CASE)),
        *("--nanguard", "--nanguard-dir", str(folder), "--nanguard-on-nonfinite", "skip"),
        *("--nanguard-max-skips", "99/99"),
    )
    variables = {"OPAQUE_FAULT": ";".join(faults_of(run)), **run.env, **env}
    finished = ranks.run(
        *(chosen.nproc, pretrain_script(), chosen.args),
        env=variables,
        timeout=SECONDS,
        in_rank="megatron_nanguard:enable",
        cwd=folder,
    )
    assert finished.code == 0, finished.out
    for fault, cell in zip(faults_of(run), run.cells, strict=True):
        # A call that is made again on another rank is as wrong there.
        assert has_acted(finished, cell.rank, fault), fault
    return finished


def faults_of(run: Run) -> list[str]:
    return [cell.fault(step) for step, cell in enumerate(run.cells, start=FIRST_CASE)]


def has_acted(finished: Finished, rank: int, fault: str) -> bool:
    said = (line for line in finished.lines(rank) if line.startswith("opaque fault acted "))
    return any(line.endswith(f" times: {fault}") for line in said)


def found(incident: dict[str, Any], cell: Cell) -> list[tuple[Any, ...]]:
    keys = ("rank", "ranks", "microbatch", "phase", "module", "operator", "output")
    named = [tuple(origin[key] for key in keys) for origin in incident["origin"]]
    return named if cell.output else [origin[:-1] for origin in named]


def expected(cell: Cell) -> list[tuple[Any, ...]]:
    place = (cell.rank, [], cell.microbatch, cell.phase, f"decoder.layers.{cell.layer}.{cell.module}", cell.operator)
    return [(*place, cell.output) if cell.output else place]


@pytest.mark.parametrize("name", EVERY)
def test_a_kernel_that_writes_nan_is_the_one_origin(ranks: Server, tmp_path: Path, name: str) -> None:
    run = RUNS[name]

    train(ranks, run, tmp_path)

    files = RunFiles.only_one_of(tmp_path)
    steps = dict(enumerate(run.cells, start=FIRST_CASE))
    assert files.incidents == [f"step_{step:08d}" for step in steps]
    origins = {step: found(files.merged(step), cell) for step, cell in steps.items()}
    assert origins == {step: expected(cell) for step, cell in steps.items()}


@pytest.mark.parametrize("name", EVERY)
def test_the_same_kernels_without_a_bad_value_are_silent(ranks: Server, tmp_path: Path, name: str) -> None:
    finished = train(ranks, RUNS[name], tmp_path, OPAQUE_TWIN="1")

    assert RunFiles.only_one_of(tmp_path).incidents == []
    assert finished.out.count("number of skipped iterations:   0") == len(RUNS[name].cells) + FIRST_CASE


@pytest.mark.long
def test_a_replay_starts_from_the_scales_of_the_step_and_leaves_those_after_it(ranks: Server, tmp_path: Path) -> None:
    run, steps = RUNS["D2 delayed"], []
    for replays in ("auto", "off"):
        (folder := tmp_path / replays).mkdir()
        more = run.layout.plus("--nanguard-replay", replays)
        steps.append(steps_of(train(ranks, Run(more, run.cells, run.env), folder)))
        if replays == "auto":
            files = RunFiles.only_one_of(folder)
            replayed = [own["replay"] for own in files.postmortems(FIRST_CASE).values()]
            assert [replay["exact"] for replay in replayed] == [True] * run.layout.nproc

    assert steps[0] == steps[1] != []
