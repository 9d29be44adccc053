"""Runs one operation of torch.distributed with a deadline; errors and timeouts become results."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from megatron_nanguard.records.machine.screening import Result

PAUSE_SECONDS = 0.0005
"""Between two queries of an operation on an accelerator."""


class TimedResult(NamedTuple):
    """Result of one operation.

    Attributes:
        result: "right" when it ended; its values are not compared here.
        seconds: from the call to its end.
        words: the error, on one line.
    """

    result: Result
    seconds: float
    words: str = ""


def run_timed(start: Callable[[], dist.Work | None], backend: str, seconds: float) -> TimedResult:
    """Start an operation and wait for it.

    Args:
        start: starts it; gives the work to wait for, or None when it is done.
        backend: of the process group.
        seconds: longest wait.
    Sync: the host waits for the operation.
    """
    began = time.monotonic()
    try:
        work = start()
        ended = work is None or _has_ended(work, backend, seconds)
    except RuntimeError as error:  # torch raises nothing more specific for broken connections and timeouts
        took, words = time.monotonic() - began, str(error).partition("\n")[0]
        if "support" in words:
            return TimedResult("unsupported", took, words)
        return TimedResult("late" if took >= seconds else "failed", took, words)
    took = time.monotonic() - began
    return TimedResult("right", took) if ended else TimedResult("late", took, f"no end after {took:.0f} s")


def _has_ended(work: dist.Work, backend: str, seconds: float) -> bool:
    """Whether the work ended in time.

    gloo completes point-to-point work in `wait` only. On other backends `wait` does not block the host, so work is
    polled there.
    """
    if backend == "gloo":
        work.wait(timedelta(seconds=seconds))
        return True
    until = time.monotonic() + seconds
    while not work.is_completed():
        if time.monotonic() > until:
            return False
        time.sleep(PAUSE_SECONDS)
    return True
