"""Threads for work that may never return, such as a write to a hung file system; no wait for it is without a limit."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

Result = TypeVar("Result")
_END_SECONDS: Final = 1.0


class TookTooLong(Exception):
    """A piece of work did not end within its time; it may still be running."""


class _Work(Generic[Result]):
    """One piece of work, and what came of it."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call = call
        self._result: list[Result] = []
        self._error: BaseException | None = None
        self.is_done = threading.Event()

    def run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:
            self._error = error
        self.is_done.set()

    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        return self._result[0]


class SideThread:
    """A daemon thread that does one piece of work after the other.

    While a piece that was late is still running, nothing new is begun: threads must not pile up behind a file system
    that hangs. The thread starts with the first piece, since at the end of the process no new one can be started.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[_Work[object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: _Work[object] | None = None

    def do(self, call: Callable[[], Result], seconds: float) -> Result:
        """Do a piece of work there and wait for it.

        Args:
            seconds: longest wait.
        Raises:
            TookTooLong: it did not end in time, or an earlier piece is still running.
            BaseException: whatever the work raises.
        """
        end = time.monotonic() + seconds
        if self._last is not None and not self._last.is_done.wait(seconds):
            raise TookTooLong
        work = _Work(call)
        if not self._is_running():
            work.run()
            return work.result()
        self._last = work  # type: ignore[assignment]
        self._queue.put(work)  # type: ignore[arg-type]
        if not work.is_done.wait(max(end - time.monotonic(), 0.0)):
            raise TookTooLong
        self._last = None  # it holds what it made
        return work.result()

    def end(self) -> None:
        """End the thread, unless what it does hangs; a further piece of work would start it again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join(_END_SECONDS)

    def _is_running(self) -> bool:
        """Whether the thread is there; it is started where it is not, as in the child of a fork."""
        if self._thread is None or not self._thread.is_alive():
            self._queue = queue.SimpleQueue()
            weakref.finalize(self, self._queue.put, None).atexit = False
            self._thread = threading.Thread(target=_work_off, args=(self._queue,), name=self._name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no thread can be started, such as at the end of the process
                self._thread = None
        return self._thread is not None


def _work_off(waiting: queue.SimpleQueue[_Work[object] | None]) -> None:
    """Do one piece after the other; None is the last."""
    while (work := waiting.get()) is not None:
        work.run()
        del work  # it holds what it made, maybe tensors


def do_beside(seconds: float, *calls: Callable[[], object]) -> None:
    """Make each call in a thread of its own, and wait for all of them together, at most so long.

    Never raises: what a call raises is lost.
    """
    end = time.monotonic() + seconds
    works = [_Work(call) for call in calls]
    for work in works:
        with suppress(RuntimeError):  # no thread can be started
            threading.Thread(target=work.run, daemon=True).start()
    for work in works:
        work.is_done.wait(max(end - time.monotonic(), 0.0))
