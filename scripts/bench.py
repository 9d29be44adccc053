"""Timings of the guard in a healthy run, of the fork launcher, of replays and of reports; medians with quartiles.

healthy: a model of 50 M parameters on one CPU rank, with the guard (on), without it and with Megatron's own check off
(off), and without it once more (the A/A control); runs interleaved, first steps of a run left out.
launcher: 8 ranks, layout TP2 PP2 DP2, 3 steps, through one import server.
replay: the passes of an incident against a healthy step of the same run, tiny model on 8 ranks, the same with kernels
that no dispatcher sees (tests/opaque), and 50 M on one; and the seconds from the alarm to the merged incident.
report: `nanguard report` over the files of 16,384 ranks, see bench_report.py.
"""

from __future__ import annotations

import atexit
import json
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench_report import report

from megatron_nanguard.cli.demo import CPU_KERNELS, LAYOUT, MODEL
from tests.import_server import Server

SCRIPT = Path(__file__).resolve().parents[1] / "megatron_nanguard" / "cpurun" / "pretrain_gpt.py"
ITERATION = re.compile(r"iteration +(\d+)/.*elapsed time per iteration \(ms\): ([0-9.]+)")
WARM_UP = 2
STEPS = 6
LARGE = (
    f"--num-layers 12 --hidden-size 576 --num-attention-heads 8 --seq-length 256 --max-position-embeddings 256 "
    f"--vocab-size 4096 --global-batch-size 4 --micro-batch-size 1 --train-iters {STEPS} --bf16"
)


def enable_timed() -> None:
    """Enable the guard with a clock on every handler; the host's own work inside a handler is not counted."""
    import megatron_nanguard
    from megatron_nanguard.guard.guard import Guard

    spent = {"seconds": 0.0, "calls": 0}
    handlers = Guard.handlers.func
    Guard.handlers = property(  # type: ignore[assignment]
        lambda self: {name: _clocked(handler, spent) for name, handler in handlers(self).items()}
    )
    megatron_nanguard.enable()
    atexit.register(lambda: print("HANDLERS " + json.dumps(spent), flush=True))


def _clocked(handler: Callable[..., Any], spent: dict[str, Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        inside = [0.0]

        def hosted(work: Callable[[], Any]) -> Callable[[], Any]:
            def run() -> Any:
                begin = time.perf_counter()
                try:
                    return work()
                finally:
                    inside[0] += time.perf_counter() - begin

            return run

        if handler.__name__ in ("decide", "step"):
            args = (hosted(args[0]), *args[1:])
        begin = time.perf_counter()
        try:
            return handler(*args)
        finally:
            spent["seconds"] += time.perf_counter() - begin - inside[0]
            spent["calls"] += 1

    return call


def _spread(values: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return f"{middle:.3f} (quartiles {low:.3f} to {high:.3f}, {len(values)} values)"


def _steps(server: Server, args: Sequence[str], in_rank: str | None) -> tuple[list[float], float]:
    """Milliseconds of each step after the warm-up, and milliseconds per step inside our handlers."""
    finished = server.run(1, SCRIPT, args, in_rank=in_rank, timeout=600)
    assert finished.code == 0, finished.out
    steps = [float(ms) for number, ms in ITERATION.findall(finished.out) if int(number) > WARM_UP]
    handlers = re.search(r"HANDLERS (\{.*\})", finished.out)
    return steps, json.loads(handlers[1])["seconds"] * 1e3 / STEPS if handlers else 0.0


def healthy(server: Server, pairs: int) -> None:
    """Print step times with and without the guard, and the time inside our handlers."""
    args = [*MODEL.split(), *CPU_KERNELS.split(), *LARGE.split(), "--no-check-for-nan-in-loss-and-grad"]
    seen: dict[str, list[float]] = {"off": [], "on": [], "control": []}
    inside = []
    with tempfile.TemporaryDirectory() as directory:
        guarded = [*args, "--nanguard", "--nanguard-dir", directory]
        for _ in range(pairs):
            seen["off"].append(statistics.median(_steps(server, args, None)[0]))
            steps, handlers = _steps(server, guarded, "bench:enable_timed")
            seen["on"].append(statistics.median(steps))
            inside.append(handlers / seen["on"][-1])
            seen["control"].append(statistics.median(_steps(server, args, None)[0]))
    for name, values in seen.items():
        print(f"{name:8} ms per step {_spread(values)}")
    print(f"on / off       {_spread([a / b for a, b in zip(seen['on'], seen['off'], strict=True)])}")
    print(f"control / off  {_spread([a / b for a, b in zip(seen['control'], seen['off'], strict=True)])}")
    print(f"inside our handlers, share of the step {_spread(inside)}")


def launcher(server: Server, pairs: int) -> None:
    """Print the seconds of an 8-rank, 3-step run from fork to the last exit."""
    args = [*MODEL.split(), *LAYOUT.split(), *CPU_KERNELS.split(), "--train-iters", "3"]
    seconds = {"stock": [], "guarded": []}  # type: dict[str, list[float]]
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(pairs):
            seconds["stock"].append(server.run(8, SCRIPT, args).seconds)
            guarded = [*args, "--nanguard", "--nanguard-dir", directory]
            seconds["guarded"].append(server.run(8, SCRIPT, guarded, in_rank="megatron_nanguard:enable").seconds)
    for name, values in seconds.items():
        print(f"{name:8} s per run {_spread(values)}")


def replay(server: Server, pairs: int) -> None:
    """Print each pass of a replay as a multiple of a healthy step of the same run."""
    drill = "--nanguard-drill=nan@step=4,rank=0,mb=1,phase=backward,module=decoder.layers.1.mlp"
    tiny = [*MODEL.split(), *LAYOUT.split(), *CPU_KERNELS.split(), "--train-iters", "6"]
    models = {
        "tiny, 8 ranks": (8, tiny),
        "opaque, 8 ranks": (8, [*tiny, "--disable-bias-linear", "--spec", "tests.opaque.spec", "layer_spec"]),
        "50 M, 1 rank": (1, [*MODEL.split(), *CPU_KERNELS.split(), *LARGE.split()]),
    }
    for model, (nproc, args) in models.items():
        ratios: dict[str, list[float]] = {}
        for _ in range(pairs):
            with tempfile.TemporaryDirectory() as directory:
                guarded = [*args, "--nanguard", "--nanguard-dir", directory, "--nanguard-on-nonfinite", "skip", drill]
                finished = server.run(nproc, SCRIPT, guarded, in_rank="megatron_nanguard:enable", timeout=900)
                assert finished.code == 0, finished.out
                steps = {int(number): float(ms) / 1e3 for number, ms in ITERATION.findall(finished.out)}
                healthy_step = statistics.median(seconds for number, seconds in steps.items() if number not in (1, 4))
                (path,) = Path(directory).glob("runs/*/incidents/*/incident.json")
                stages = json.loads(path.read_text())["replay"]["stages"]
            for stage, seconds in re.findall(r"(\w+)[^:]*: ([0-9.]+) s", "\n".join(stages)):
                ratios.setdefault(stage, []).append(float(seconds) / healthy_step)
            ratios.setdefault("whole incident, seconds", []).append(steps[4] - healthy_step)
        for stage, values in ratios.items():
            print(f"{model:15} {stage:24} {_spread(values)}")


def main() -> None:
    """Run one benchmark and print the machine it ran on."""
    modes = {"healthy": healthy, "launcher": launcher, "replay": replay}
    mode = sys.argv[1] if len(sys.argv) > 1 else "healthy"
    if mode not in (*modes, "report"):
        sys.exit(f"bench: {mode!r} is not one of {', '.join((*modes, 'report'))}")
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print(f"{platform.processor() or platform.machine()}, torch {version('torch')}, core {version('megatron-core')}")
    if mode == "report":
        report(rounds, _spread)
        return
    server = Server.start()
    try:
        modes[mode](server, rounds)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
