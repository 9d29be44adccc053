"""Wait for the ranks, and report how the job ended.

[cpu-run] rank 5 failed first (exit code 1), the others were brought down; its last lines:
[cpu-run] all 8 ranks left with exit code 65
[cpu-run] no end after 120 s: the stacks of all ranks follow
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from megatron_nanguard.cpurun.processes import Ending, RankProcesses
from megatron_nanguard.cpurun.rank_output import RankOutput

POLICY_EXIT = 65
"""The guard ends a run with it, on every rank."""
TIMEOUT_EXIT = 124
LAST_LINES = "its last lines:"
"""Ends the line after which the launcher repeats the last lines of a failed rank."""
LINGER_SECONDS = 1.0
"""Other ranks have this long to print their tracebacks after the first failure."""
_POLICY_LINGER_SECONDS = 10.0  # ranks that leave by policy wait for each other
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class JobResult:
    """How a launch ended.

    Attributes:
        code: Exit code of the launcher.
        codes: Rank to exit code (128 + signal), of the ranks that ended by themselves; the others were brought down.
    """

    code: int
    codes: Mapping[int, int]


def say(text: str) -> None:
    """Print one line of the launcher itself."""
    print(f"[cpu-run] {text}", file=sys.stderr, flush=True)


def wait_for_end(ranks: RankProcesses, output: RankOutput, timeout: float | None, linger: float) -> bool:
    """Print what the ranks print, until all ended or until one failed and the others had time to end too.

    Args:
        ranks: The running ranks.
        output: Their pipes.
        timeout: Seconds until all stacks are printed; None for no limit.
        linger: Seconds that the others have to end by themselves after the first failure.
    Returns:
        Whether they ended (or failed) in time.
    """
    started = time.monotonic()
    while ranks.are_running:
        _poll(ranks, output)
        if failures(ranks.endings):
            _linger(ranks, output, linger)
            return True
        if timeout is not None and time.monotonic() - started > timeout:
            say(f"no end after {timeout:g} s: the stacks of all ranks follow")
            ranks.print_stacks()
            _linger(ranks, output, LINGER_SECONDS)
            return False
    return True


def _poll(ranks: RankProcesses, output: RankOutput) -> None:
    output.pump(_POLL_SECONDS)
    ranks.reap()


def _linger(ranks: RankProcesses, output: RankOutput, seconds: float) -> None:
    started = time.monotonic()
    while ranks.are_running:
        by_policy = bool(ranks.endings) and all(e.status in (0, POLICY_EXIT) for e in ranks.endings.values())
        if time.monotonic() - started > (max(seconds, _POLICY_LINGER_SECONDS) if by_policy else seconds):
            break
        _poll(ranks, output)


def conclude(ranks: RankProcesses, output: RankOutput, nproc: int, in_time: bool) -> JobResult:
    """Report which rank failed first, with its last lines; called when every rank has ended."""
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


def failures(endings: Mapping[int, Ending]) -> dict[int, Ending]:
    """The ranks that did not end with 0."""
    return {rank: ending for rank, ending in endings.items() if ending.status != 0}


def is_policy_exit(endings: Mapping[int, Ending], nproc: int) -> bool:
    """Whether all ranks left with the exit code of the guard's policy."""
    return len(endings) == nproc and all(ending.status == POLICY_EXIT for ending in endings.values())


def first_failure(endings: Mapping[int, Ending]) -> int:
    """Find the rank that failed first.

    A rank leaves with the policy's code because of what other ranks did, so it counts last. A rank that a signal
    killed leaves no time stamp, and its peers may fail before it is found ended, so it counts first.

    Args:
        endings: At least one of them a failure.
    """
    failed = failures(endings)

    def order(rank: int) -> tuple[bool, bool, float]:
        ending = failed[rank]
        return ending.status == POLICY_EXIT, ending.status >= 0, ending.at

    return min(failed, key=order)
