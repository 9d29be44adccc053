"""Asks the sources of hardware readings in threads of their own, so that a driver that hangs blocks nothing else."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.records.machine.health import HealthReading

POLL_SECONDS: Final = 10.0
"""Time limit of one source; NVML takes some hundredths of a second, npu-smi a few seconds."""


class SourceAnswer(NamedTuple):
    """The answer of a source.

    Attributes:
        readings: counters and states.
        problem: why readings are missing; empty when none are.
    """

    readings: tuple[HealthReading, ...] = ()
    problem: str = ""


class Source(Protocol):
    """One source of readings: a vendor's tool, or the kernel. It may hang, and is asked in a thread of its own."""

    @property
    def name(self) -> str:
        """Its name in reports and in problems."""

    def read(self) -> SourceAnswer:
        """Read counters and states now."""


class Poll:
    """One poll of all sources; the constructor starts it and does not wait.

    Args:
        sources: each is asked in a daemon thread.
        seconds: time limit.
        hanging: source to thread, of earlier polls that have not returned; these sources are not asked again.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        seconds: float = POLL_SECONDS,
        *,
        hanging: Mapping[str, threading.Thread] = MappingProxyType({}),
    ) -> None:
        self.taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._seconds = seconds
        self._began = time.monotonic()
        self._answers: dict[str, SourceAnswer] = {}
        self._threads = {
            source.name: threading.Thread(target=self._ask, args=(source,), name=f"nanguard-{source.name}", daemon=True)
            for source in sources
            if source.name not in hanging
        }
        self._hanging = dict(hanging)
        self._gave_up = False
        for thread in self._threads.values():
            thread.start()

    def _ask(self, source: Source) -> None:
        shield = Shield()
        with shield(f"reading of the hardware, {source.name}"):
            self._answers[source.name] = source.read()
        if shield.fault is not None:
            self._answers[source.name] = SourceAnswer(problem=shield.fault)

    def collect(self, until: float = math.inf) -> dict[str, SourceAnswer]:
        """Wait for the answers, and give them by the name of their source.

        Args:
            until: monotonic time at which the caller stops waiting, if that is before the time limit.
        """
        end = min(self._began + self._seconds, until)
        for thread in self._threads.values():
            thread.join(max(0.0, end - time.monotonic()))
        waited = time.monotonic() - self._began
        self._gave_up = True
        answers = {
            name: self._answers.get(name) or SourceAnswer(problem=f"{name}: no answer after {waited:.0f} s")
            for name in self._threads
        }
        return answers | {
            name: SourceAnswer(problem=f"{name}: has hung since an earlier poll") for name in self._hanging
        }

    def hanging(self) -> dict[str, threading.Thread]:
        """Source to thread, of the sources that are past the time limit and have not answered."""
        is_over = self._gave_up or time.monotonic() > self._began + self._seconds
        threads = self._hanging | (self._threads if is_over else {})
        return {name: thread for name, thread in threads.items() if thread.is_alive()}
