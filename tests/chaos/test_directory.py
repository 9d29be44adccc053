"""Trouble with the directory in any stage of an incident: the policy holds, the guard stays on, the verdict is printed.

One rank of real Megatron trains on a NaN; the trouble begins with a stage and lasts to the end of the incident.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.arbitration import bundle
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.guarded_run.guarded_run import GuardedRun
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from megatron_nanguard.incident import capturing, stages
from megatron_nanguard.incident.alarm import Alarm
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.records.json import record_file
from megatron_nanguard.sentinel.vote_flags import Flag
from megatron_nanguard.settings import Settings
from tests.unit.capture.steps import guard_optimizer, run_step
from tests.unit.conftest import Log
from tests.unit.one_rank import ONES, trainer

numbers = itertools.count(700)
STAGES = ("signal", "exchange", "plain replay", "traces", "arbitration", "files", "merging", "capture")
DEADLINE_SECONDS = 20.0
PATIENCE_SECONDS = 1.0
Cause = Callable[[Path], None]


class Trouble:
    """Ways in which a directory fails; each lasts until `over`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.over = threading.Event()

    def nothing(self, run: Path) -> None:
        """The twin."""

    def full(self, run: Path) -> None:
        """Every write fails half way."""

        def fail(*args: Any, **kwargs: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        self._patch.setattr(Path, "write_bytes", fail)
        self._patch.setattr(capturing, "write_tensors", fail)
        self._patch.setattr(bundle, "save_file", fail)
        self._patch.setattr(shutil, "copyfile", fail)

    def gone(self, run: Path) -> None:
        """Somebody has removed it; it can be made again."""
        shutil.rmtree(run, ignore_errors=True)

    def file(self, run: Path) -> None:
        """There is a file in its place."""
        shutil.rmtree(run, ignore_errors=True)
        run.parent.mkdir(parents=True, exist_ok=True)
        run.write_text("a file")

    def unreadable(self, run: Path) -> None:
        """It can be written and not be read."""
        listdir, opened = os.listdir, os.open

        def is_ours(path: Any) -> bool:
            return isinstance(path, str | os.PathLike) and str(path).startswith(str(run))

        def refuse(path: Any) -> None:
            if is_ours(path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

        self._patch.setattr(os, "listdir", lambda path=".": refuse(path) or listdir(path))
        self._patch.setattr(record_file.os, "open", lambda path, *more: refuse(path) or opened(path, *more))

    def hung(self, run: Path) -> None:
        """No write comes back."""
        self._patch.setattr(Path, "mkdir", lambda *args, **kwargs: self.over.wait(50))


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trouble]:
    made = Trouble(monkeypatch)
    yield made
    made.over.set()


def begin_with(monkeypatch: pytest.MonkeyPatch, stage: str, begin: Callable[[], None]) -> None:
    """Let the trouble begin when a stage begins."""
    original = Watchdog.stage

    def begun(dog: Watchdog, name: str, **more: Any) -> None:
        original(dog, name, **more)
        if name == stage:
            begin()

    monkeypatch.setattr(Watchdog, "stage", begun)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["nothing", "full", "gone", "file", "unreadable", "hung"])
@pytest.mark.parametrize("stage", STAGES)
def test_trouble_with_the_directory_costs_files_and_nothing_else(
    megatron: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
    trouble: Trouble,
    kind: str,
    stage: str,
) -> None:
    settings = Settings(on=True, dir=str(tmp_path), deadline=DEADLINE_SECONDS, capture="full")
    run = GuardedRun(settings, RunHandshake((0,), next(numbers)), Shield(), Counter(), [])
    run.run_id, run.policy = "run-1", "skip"
    run.start()
    run.directory.patience = PATIENCE_SECONDS
    made = trainer(ddp={"check_for_nan_in_grad": False})
    guarded = guard_optimizer(made, next(numbers))
    run_step(made, guarded, (ONES, ONES * math.nan))
    voters = guarded.voting_ranks.voters()
    assert voters is not None
    votes = tuple(int(flag in (Flag.LOCAL, Flag.REDUCED)) for flag in Flag)
    begin_with(monkeypatch, stage, lambda: getattr(trouble, kind)(run.directory.path))
    began = time.monotonic()

    decision = stages.handle(run, guarded, Alarm(votes, guarded.optimizer, voters))  # type: ignore[arg-type]

    assert decision.action == "skip"
    assert time.monotonic() - began < 20 * PATIENCE_SECONDS + 10.0
    assert run.shield.fault is None and run.failed_stages == {}, "trouble with the directory is no fault of ours"
    (sentence,) = (message for message in log.messages if message.startswith("non-finite gradient or loss. "))
    assert "gradients of rank 0 were not finite" in sentence
    assert "It began on rank 0, " in sentence and " of micro-batch 1: " in sentence
    assert "Most likely: " in sentence or "The cause is undecided." in sentence
    assert "Policy skip: the step is skipped on all ranks." in sentence
    others = [message for message in log.messages if message.startswith("cannot ")]
    assert len(others) <= 1
    if kind in ("full", "file", "hung"):
        assert len(others) == 1 or stage == "capture"
    if kind == "nothing":
        assert log.messages == [sentence]
        names = sorted(path.name for path in run.directory.path.glob("incidents/*/*"))
        assert names == [
            *("bundle", "capture", "incident.json", "rank00000_tp0pp0dp0.json", "trace00000_tp0pp0dp0.json")
        ]
