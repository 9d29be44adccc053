"""Results, errors and timeouts of an operation become results."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from megatron_nanguard.screening.timed_operation import TimedResult, run_timed


class Never:
    """Work that does not end: gloo waits for it and raises, an accelerator is asked."""

    def wait(self, timeout: timedelta) -> bool:
        time.sleep(timeout.total_seconds())
        raise RuntimeError("Timed out waiting 50ms for recv operation to complete\nmore")

    def is_completed(self) -> bool:
        return False


class Done:
    def wait(self, timeout: timedelta) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def outcome(tried: TimedResult) -> tuple[str, str]:
    return tried.result, tried.words


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("work", [None, Done()])
def test_an_operation_that_ends_is_right(backend: str, work: Any) -> None:
    assert outcome(run_timed(lambda: work, backend, 20.0)) == ("right", "")


def test_an_operation_that_does_not_end_is_late() -> None:
    gloo = run_timed(lambda: Never(), "gloo", 0.05)  # type: ignore[arg-type, return-value]
    assert outcome(gloo) == ("late", "Timed out waiting 50ms for recv operation to complete")
    nccl = run_timed(lambda: Never(), "nccl", 0.05)  # type: ignore[arg-type, return-value]
    assert outcome(nccl) == ("late", "no end after 0 s")
    assert 0.05 <= nccl.seconds < 5.0


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (RuntimeError("Connection closed by peer"), "failed"),
        (NotImplementedError("gloo does not support this"), "unsupported"),
    ],
)
def test_an_error_before_the_deadline_gives_its_kind(error: RuntimeError, result: str) -> None:
    def start() -> None:
        raise error

    assert outcome(run_timed(start, "gloo", 20.0)) == (result, str(error))
