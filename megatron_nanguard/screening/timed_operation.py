"""One operation of torch.distributed under a deadline: what came of it is a result, not an exception."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from megatron_nanguard.records.screening import Result

PAUSE_SECONDS = 0.0005
"""Between two looks at an operation that runs on an accelerator."""


class TimedResult(NamedTuple):
    """What came of one operation.

    Attributes:
        result: "right" says that it ended; its values have not been looked at.
        seconds: from the call to the end of it.
        words: the error, on one line.
    """

    result: Result
    seconds: float
    words: str = ""


def run_timed(start: Callable[[], dist.Work | None], backend: str, seconds: float) -> TimedResult:
    """Start an operation and wait for it.

    Args:
        start: starts it asynchronously; None is done already.
        backend: of the process group.
        seconds: longest wait.
    Sync: the host waits for the operation.
    """
    began = time.monotonic()
    try:
        work = start()
        ended = work is None or _has_ended(work, backend, seconds)
    except RuntimeError as error:  # torch tells of broken connections and of timeouts by nothing more exact
        took, words = time.monotonic() - began, str(error).partition("\n")[0]
        if "support" in words:
            return TimedResult("unsupported", took, words)
        return TimedResult("late" if took >= seconds else "failed", took, words)
    took = time.monotonic() - began
    return TimedResult("right", took) if ended else TimedResult("late", took, f"no end after {took:.0f} s")


def _has_ended(work: dist.Work, backend: str, seconds: float) -> bool:
    """gloo's point-to-point work knows its end only when it is waited for; elsewhere a wait would not hold the host."""
    if backend == "gloo":
        work.wait(timedelta(seconds=seconds))
        return True
    until = time.monotonic() + seconds
    while not work.is_completed():
        if time.monotonic() > until:
            return False
        time.sleep(PAUSE_SECONDS)
    return True
