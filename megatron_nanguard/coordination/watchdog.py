"""The clock of an incident: a thread ends this rank when a stage takes too long or another rank has failed.

There is no way back from a collective that one rank will not enter; aborting process groups does not wake gloo.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from megatron_nanguard.coordination.store import Store

log = logging.getLogger("megatron_nanguard")

EXIT_CODE = 65
FAILED = "failed"
STDERR = 2
"""The descriptor itself: ``sys.stderr`` may have been replaced by something without one."""


def leave_now(code: int) -> None:
    """End this process at once, without exit handlers: they may wait for ranks that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Watchdog:
    """Context manager around an incident.

    Args:
        store: own client of the rendezvous store, under a prefix that names the incident's run.
        rank: this rank.
        world_size: ranks of the incident; the more, the more seldom the store is asked.
        deadline: seconds that a stage may take (--nanguard-deadline).
        step_seconds: duration of a healthy step, for stages that run the step again.
        leave: ends the process; replaced in tests.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        deadline: float,
        step_seconds: float,
        leave: Callable[[int], None] = leave_now,
    ) -> None:
        self.deadline = deadline
        self._store, self._rank, self._world_size, self._leave = store, rank, world_size, leave
        self._step_seconds = step_seconds
        self._pause = min(0.2 + world_size / 5000, 2.0)
        self._end = 0.0
        self._stage = ""
        self._over = threading.Event()

    def stage(self, name: str, *, healthy_steps: int = 0, seconds: float = 0.0) -> None:
        """Begin a stage; the time of the one before is over.

        Args:
            name: for the log of a rank that leaves.
            healthy_steps: how many times the duration of a healthy step it may take beyond the deadline.
            seconds: further time beyond the deadline.
        """
        allowed = self.deadline + healthy_steps * self._step_seconds + seconds
        self._stage, self._end = name, time.monotonic() + allowed

    def wait_for_all(self, where: str) -> None:
        """Wait until every rank of the incident has come here.

        Not in a collective: its own timeout is shorter than a stage may be. The deadline of the stage ends this wait,
        too. The store is asked now and then, for a wait would block the connection.

        Args:
            where: key of one place of one incident.
        """
        self._store.add(where, 1)
        while int(self._store.add(where, 0)) < self._world_size:
            time.sleep(self._pause)

    def __enter__(self) -> Watchdog:
        self._over.clear()
        threading.Thread(target=self._watch, name="nanguard-watchdog", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, Exception):
            log.error("the incident failed on rank %d in stage %r: %s", self._rank, self._stage, error, exc_info=error)
            self.report_failed(f"rank {self._rank}, stage {self._stage}: {error}")
            self._leave(EXIT_CODE)
        self._over.set()

    def report_failed(self, why: str) -> None:
        """Make every other rank leave within seconds."""
        try:
            self._store.set(FAILED, why)
        except RuntimeError as error:
            log.warning("the rendezvous store does not answer: %s", error)

    def _watch(self) -> None:
        while not self._over.wait(self._pause):
            why = self._reason()
            if why:
                log.error("rank %d leaves an incident in stage %r: %s", self._rank, self._stage, why)
                faulthandler.dump_traceback(STDERR, all_threads=True)
                self._leave(EXIT_CODE)
                return

    def _reason(self) -> str | None:
        if self._end and time.monotonic() > self._end:
            self.report_failed(f"rank {self._rank} waited too long in stage {self._stage}")
            return "the deadline has passed (--nanguard-deadline)"
        try:
            return f"reported by {self._store.get(FAILED).decode()}" if self._store.check([FAILED]) else None
        except RuntimeError as error:
            return f"the rendezvous store is gone ({error})"
