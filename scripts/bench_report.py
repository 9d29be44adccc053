"""Seconds and memory of `nanguard report` over the files of 16,384 ranks, and the seconds of its start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import many_ranks
import many_traces

from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.incident import Incident, PolicyOutcome
from megatron_nanguard.records.postmortem import Kind, RankSets

Spread = Callable[[Sequence[float]], str]
REPORT = (sys.executable, "-m", "megatron_nanguard", "report")
MIDDLE_STAGE = many_ranks.PP // 2 - 1


def report(rounds: int, spread: Spread) -> None:
    """Print what the report costs: all ranks infected or bad, then half of them clean; text, JSON and page.

    Args:
        rounds: how often each is run.
        spread: words for a list of figures.
    """
    with tempfile.TemporaryDirectory() as directory:
        for words, stage in (("all infected", many_ranks.ALL_STAGES), ("half clean", MIDDLE_STAGE)):
            incident = Path(directory) / f"stage{stage}"
            ranks = many_ranks.write(incident, stage) >> 20
            traces = many_traces.write(incident, "replica") >> 20
            print(f"{many_ranks.SIZES.world} ranks, {words}: {ranks} MiB of post-mortems, {traces} MiB of traces")
            page = incident / "page.html"
            for name, options in (("text", ()), ("--json", ("--json",)), ("--html", ("--html", str(page), "--force"))):
                _print(name, [_run((*REPORT, str(incident), *options)) for _ in range(rounds)], spread)
            print(f"  page {page.stat().st_size / 2**20:.1f} MiB")
        small = _small(Path(directory) / "small")
        _print("start, one small incident", [_run((*REPORT, str(small))) for _ in range(5 * rounds)], spread)


class Cost(NamedTuple):
    """What one command took.

    Attributes:
        seconds: from start to exit.
        cpu_seconds: of its own; the same as `seconds` on a machine that does nothing else.
        peak_mib: most memory it had at once.
    """

    seconds: float
    cpu_seconds: float
    peak_mib: float


def _print(name: str, costs: Sequence[Cost], spread: Spread) -> None:
    seconds = spread([cost.seconds for cost in costs])
    cpu = min(cost.cpu_seconds for cost in costs)
    peak = max(cost.peak_mib for cost in costs)
    print(f"  {name:8} s {seconds}, at least {cpu:.3f} s of CPU, peak {peak:.0f} MiB", flush=True)


def _run(words: Sequence[str]) -> Cost:
    begin = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, words
    return Cost(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def _small(root: Path) -> Path:
    """An incident that was merged in the run and holds next to nothing."""
    record = Incident(
        run_id="20260101T120000Z-ab12",
        step=3,
        kind=Kind.GRADIENT_BEFORE_REDUCTION,
        summary="Step 3: nothing is known.",
        ranks=RankSets((), (), ()),
        sizes=ParallelSizes(world=8, tp=2, cp=1, ep=1, dp=2, pp=2, expert_tp=2, expert_dp=2),
        groups=(),
        infected_groups=(),
        policy=PolicyOutcome("abort", "abort", 65, "all ranks left with exit code 65"),
    )
    RunDirectory(root, "run", print).write("incidents/step_00000003/incident.json", record)
    return root
