"""Wait for the ranks, and say how they ended.

[cpu-run] rank 5 failed first (exit code 1), the others were brought down; its last lines:
[cpu-run] all 8 ranks left with exit code 65
[cpu-run] no end after 120 s: the stacks of all ranks follow
"""

from __future__ import annotations

import sys
import time

from megatron_nanguard.cpurun.outcome import (
    POLICY_EXIT,
    TIMEOUT_EXIT,
    JobResult,
    failures,
    first_failure,
    is_policy_exit,
)
from megatron_nanguard.cpurun.processes import RankProcesses
from megatron_nanguard.cpurun.rank_output import RankOutput

LAST_LINES = "its last lines:"
"""Ends the line after which the lines of a failed rank are repeated."""
LINGER_SECONDS = 1.0  # for the tracebacks of ranks that fail with the first
_POLICY_LINGER_SECONDS = 10.0  # ranks that leave on purpose wait for each other
_POLL_SECONDS = 0.2


def say(text: str) -> None:
    """One line of the launcher's own, never a rank's."""
    print(f"[cpu-run] {text}", file=sys.stderr, flush=True)


def wait_for_end(ranks: RankProcesses, output: RankOutput, timeout: float | None, linger: float) -> bool:
    """Print what the ranks print until all ended or one failed, and a little longer.

    Args:
        ranks: The running ranks.
        output: Their pipes.
        timeout: Seconds until all stacks are printed; None for no end.
        linger: Seconds that the others have to end by themselves after the first failure.
    Returns:
        Whether they ended (or failed) in time.
    """
    started = time.monotonic()
    while ranks.are_running:
        _look(ranks, output)
        if failures(ranks.endings):
            _linger(ranks, output, linger)
            return True
        if timeout is not None and time.monotonic() - started > timeout:
            say(f"no end after {timeout:g} s: the stacks of all ranks follow")
            ranks.print_stacks()
            _linger(ranks, output, LINGER_SECONDS)
            return False
    return True


def _look(ranks: RankProcesses, output: RankOutput) -> None:
    output.pump(_POLL_SECONDS)
    ranks.reap()


def _linger(ranks: RankProcesses, output: RankOutput, seconds: float) -> None:
    started = time.monotonic()
    while ranks.are_running:
        on_purpose = bool(ranks.endings) and all(e.status in (0, POLICY_EXIT) for e in ranks.endings.values())
        if time.monotonic() - started > (max(seconds, _POLICY_LINGER_SECONDS) if on_purpose else seconds):
            break
        _look(ranks, output)


def conclude(ranks: RankProcesses, output: RankOutput, nproc: int, in_time: bool) -> JobResult:
    """Name the rank that failed first, with its last lines, after everything was brought down."""
    codes = {rank: ending.code for rank, ending in sorted(ranks.endings.items())}
    if not in_time:
        return JobResult(TIMEOUT_EXIT, codes)
    if not failures(ranks.endings):
        return JobResult(0, codes)
    if is_policy_exit(ranks.endings, nproc):
        say(f"all {nproc} ranks left with exit code {POLICY_EXIT}")
        return JobResult(POLICY_EXIT, codes)
    first = first_failure(ranks.endings)
    ending = ranks.endings[first]
    others = ", the others were brought down" if len(codes) < nproc else ""
    say(f"rank {first} failed first ({ending.words}){others}; {LAST_LINES}")
    sys.stderr.writelines(output.tail(first))
    return JobResult(ending.code, codes)
