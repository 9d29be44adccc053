"""The clock of an incident: a thread ends this rank when a stage takes too long or another rank has failed.

There is no way back from a collective that one rank will not enter; aborting process groups does not wake gloo.
That thread only sleeps, and ends the process. What can hang (the store, the log, a full pipe) is done beside it.
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
from megatron_nanguard.time_limit import do_beside

log = logging.getLogger("megatron_nanguard")

EXIT_CODE = 65
FAILED = "failed"
STDERR = 2
"""The descriptor itself: ``sys.stderr`` may have been replaced by something without one."""


FLUSH_SECONDS = 0.5
"""How long the last output of the process may take; nobody may be reading it."""
REPORT_SECONDS = 2.0
"""How long a rank that leaves may take to log why and to report it to the others; both may hang."""


def leave_now(code: int) -> None:
    """End this process at once, without exit handlers: they may wait for ranks that are gone."""
    try:
        do_beside(FLUSH_SECONDS, sys.stdout.flush, sys.stderr.flush)
    finally:
        os._exit(code)


class Watchdog:
    """Context manager around an incident. However its body fails, all ranks leave with exit code 65 within seconds.

    Args:
        store: own client of the rendezvous store, under a prefix that names the incident's run.
        rank: this rank.
        world_size: ranks of the incident; the more, the more seldom the store is asked.
        deadline: seconds that a stage may take (--nanguard-deadline).
        step_seconds: duration of a healthy step, for stages that run the step again.
        speaks: this rank logs what concerns all of them.
        leave: ends the process; replaced in tests.
    Attributes:
        summary: what is known of the incident so far; logged if the rank has to leave.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        deadline: float,
        step_seconds: float,
        speaks: bool = False,
        leave: Callable[[int], None] = leave_now,
    ) -> None:
        self.deadline = deadline
        self.summary = ""
        self._store, self._rank, self._world_size, self._leave = store, rank, world_size, leave
        self._step_seconds, self._speaks = step_seconds, speaks
        self._pause = min(0.2 + world_size / 5000, 2.0)
        self._end = 0.0
        self._stage = ""
        self._over = threading.Event()
        self._elsewhere = ""

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
        for name, run in (("nanguard-watchdog", self._keep_time), ("nanguard-reports", self._look_for_reports)):
            threading.Thread(target=run, name=name, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            what = str(error) if isinstance(error, Exception) else f"{type(error).__name__} ({error})"
            self._leave_because(what, f"rank {self._rank}, stage {self._stage}: {what}", error)
        self._over.set()

    # ---------------------------------------------------------------- in threads of their own

    def _keep_time(self) -> None:
        """Sleep until the deadline of the stage, or until another rank has reported that it leaves."""
        while not self._over.wait(self._pause):
            if self._end and time.monotonic() > self._end:
                report = f"rank {self._rank} waited too long in stage {self._stage}"
                self._leave_because("the deadline has passed (--nanguard-deadline)", report)
                return
            if self._elsewhere:
                self._leave_because(self._elsewhere)
                return

    def _look_for_reports(self) -> None:
        """Ask the store whether another rank has failed. It may hang there; the deadline does not depend on it."""
        while not self._over.wait(self._pause):
            try:
                if self._store.check([FAILED]):
                    self._elsewhere = f"reported by {self._store.get(FAILED).decode()}"
            except RuntimeError as error:
                self._elsewhere = f"the rendezvous store is gone ({error})"
            if self._elsewhere:
                return

    def _leave_because(self, why: str, report: str = "", error: BaseException | None = None) -> None:
        """End this rank: make the others leave, log why, and wait for neither longer than a moment.

        Args:
            report: what the other ranks are told; empty where they know.
            error: that ended the incident here.
        """
        try:
            do_beside(REPORT_SECONDS, lambda: self._report(report), lambda: self._explain(why, report, error))
        finally:
            self._leave(EXIT_CODE)

    def _report(self, report: str) -> None:
        if report:
            try:
                self._store.set(FAILED, report)
            except RuntimeError as error:
                log.warning("the rendezvous store does not answer: %s", error)

    def _explain(self, why: str, report: str, error: BaseException | None) -> None:
        if self.summary and (report or self._speaks):
            log.error("non-finite gradient or loss. %s This incident was not completed.", self.summary)
        if error is not None:
            log.error("the incident failed on rank %d in stage %r: %s", self._rank, self._stage, why, exc_info=error)
        else:
            log.error("rank %d leaves an incident in stage %r: %s", self._rank, self._stage, why)
            faulthandler.dump_traceback(STDERR, all_threads=True)
