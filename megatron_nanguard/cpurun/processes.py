"""The forked processes: start, watch, end."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable

from megatron_nanguard.cpurun.forked_rank import STACKS_SIGNAL, STOPPING_SIGNALS, ForkedRank, Program, live
from megatron_nanguard.cpurun.outcome import Ending

_STAMP = struct.Struct("d")


class RankProcesses:
    """The processes of one run, each the leader of a process group of its own."""

    def __init__(self, nproc: int) -> None:
        self._pids: dict[int, int] = {}
        self._stamps = mmap.mmap(-1, _STAMP.size * nproc)  # shared with the ranks, zero until one fails
        self.endings: dict[int, Ending] = {}

    def fork(self, seat: ForkedRank, work: Program) -> None:
        """Start one rank.

        The stopping signals are held back meanwhile, so that none meets the copy of the launcher's handlers.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING_SIGNALS)
        pid = os.fork()
        if pid == 0:
            live(seat, work, lambda: self._stamp(seat.rank))
        self._pids[pid] = seat.rank
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # the child does it too: whoever comes first
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING_SIGNALS)

    def _stamp(self, rank: int) -> None:
        """Runs in the rank. The first stamp counts."""
        if not self._stamped_at(rank):
            _STAMP.pack_into(self._stamps, _STAMP.size * rank, time.monotonic())

    def _stamped_at(self, rank: int) -> float:
        return float(_STAMP.unpack_from(self._stamps, _STAMP.size * rank)[0])

    @property
    def are_running(self) -> bool:
        """Whether any rank is left."""
        return bool(self._pids)

    def reap(self) -> None:
        """Take note of the ranks that ended by themselves."""
        for rank, status in self._collect():
            self.endings[rank] = Ending(status, self._stamped_at(rank) or time.monotonic())

    def _collect(self) -> list[tuple[int, int]]:
        ended = []
        for pid in list(self._pids):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended.append((self._pids.pop(pid), os.waitstatus_to_exitcode(status)))
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # what it left behind
        return ended

    def print_stacks(self) -> None:
        """Have every rank print the stacks of its threads."""
        for pid in self._pids:
            os.kill(pid, STACKS_SIGNAL)

    def bring_down(self, grace_seconds: float, meanwhile: Callable[[], None]) -> None:
        """End all ranks and their children: asked first, killed after the grace.

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
