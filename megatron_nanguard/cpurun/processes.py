"""The processes of the ranks: fork them, collect their exit codes, end them."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from megatron_nanguard.cpurun.forked_rank import STACKS_SIGNAL, STOPPING_SIGNALS, ForkedRank, Program, run_rank


@dataclass(frozen=True)
class Ending:
    """How one rank ended by itself.

    Attributes:
        status: Exit code, or minus the number of the signal that killed it.
        at: Monotonic seconds: when the rank itself noticed its failure, else when the launcher found it ended.
    """

    status: int
    at: float

    @property
    def code(self) -> int:
        """Exit code as a shell reports it: 128 + signal."""
        return self.status if self.status >= 0 else 128 - self.status

    @property
    def words(self) -> str:
        """`exit code 3` or `signal SIGKILL`."""
        return f"exit code {self.status}" if self.status >= 0 else f"signal {signal.Signals(-self.status).name}"


class RankProcesses:
    """The processes of one job, each the leader of a process group of its own.

    Attributes:
        endings: Rank to how it ended, of the ranks that ended by themselves.
    """

    def __init__(self, nproc: int) -> None:
        self._pids: dict[int, int] = {}
        self._stamps = memoryview(mmap.mmap(-1, 8 * nproc)).cast("d")  # shared with the ranks, zero until one fails
        self.endings: dict[int, Ending] = {}

    def fork(self, forked: ForkedRank, program: Program) -> None:
        """Start one rank.

        The stopping signals are blocked meanwhile: the rank begins with a copy of the launcher's handlers for them.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING_SIGNALS)
        pid = os.fork()
        if pid == 0:
            run_rank(forked, program, lambda: self._stamp(forked.rank))
        self._pids[pid] = forked.rank
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # the rank does the same; whichever comes first
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING_SIGNALS)

    def _stamp(self, rank: int) -> None:
        """Note the time of a rank's first failure; runs in the rank."""
        if not self._stamps[rank]:
            self._stamps[rank] = time.monotonic()

    @property
    def are_running(self) -> bool:
        """Whether any rank still runs."""
        return bool(self._pids)

    def reap(self) -> None:
        """Record the endings of the ranks that ended by themselves since the last call."""
        for rank, status in self._collect():
            self.endings[rank] = Ending(status, self._stamps[rank] or time.monotonic())

    def _collect(self) -> list[tuple[int, int]]:
        """Ranks that have ended since the last call, with their exit status."""
        ended = []
        for pid in list(self._pids):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended.append((self._pids.pop(pid), os.waitstatus_to_exitcode(status)))
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # children that the rank left running
        return ended

    def print_stacks(self) -> None:
        """Have every rank print the stacks of its threads."""
        for pid in self._pids:
            os.kill(pid, STACKS_SIGNAL)

    def bring_down(self, grace_seconds: float, meanwhile: Callable[[], None]) -> None:
        """End all ranks and their children: SIGTERM first, SIGKILL after the grace period.

        Args:
            grace_seconds: Between the two.
            meanwhile: Called while waiting, about 20 times a second.
        """
        self._signal(signal.SIGTERM)
        until = time.monotonic() + grace_seconds
        while self._pids and time.monotonic() < until:
            meanwhile()
            self._collect()
        self._signal(signal.SIGKILL)
        while self._pids:
            meanwhile()
            self._collect()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)
