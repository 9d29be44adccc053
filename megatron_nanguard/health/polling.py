"""One look at the hardware, beside everything else: a driver that hangs holds up a thread of its own, no more."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from megatron_nanguard.health.source import Source, SourceAnswer
from megatron_nanguard.patching import Shield

LOOK_SECONDS: Final = 10.0
"""Time for all that one source is asked; NVML takes some hundredths, npu-smi a few seconds."""


class Poll:
    """Begins with its construction, which waits for nothing.

    Args:
        sources: what is asked, each in a daemon thread.
        seconds: how long each has.
        hanging: threads of earlier looks that have not come back, by source; those sources are not asked again.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        seconds: float = LOOK_SECONDS,
        *,
        hanging: Mapping[str, threading.Thread] = MappingProxyType({}),
    ) -> None:
        self.taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._seconds = seconds
        self._began = time.monotonic()
        self._told: dict[str, SourceAnswer] = {}
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
            self._told[source.name] = source.read()
        if shield.fault is not None:
            self._told[source.name] = SourceAnswer(problem=shield.fault)

    def collect(self, until: float = math.inf) -> dict[str, SourceAnswer]:
        """What each source told until the look's time is up, by its name.

        Args:
            until: the caller's own end of patience, by the monotonic clock.
        """
        end = min(self._began + self._seconds, until)
        for thread in self._threads.values():
            thread.join(max(0.0, end - time.monotonic()))
        waited = time.monotonic() - self._began
        self._gave_up = True
        told = {
            name: self._told.get(name) or SourceAnswer(problem=f"{name}: no answer after {waited:.0f} s")
            for name in self._threads
        }
        return told | {name: SourceAnswer(problem=f"{name}: hangs since an earlier look") for name in self._hanging}

    def hanging(self) -> dict[str, threading.Thread]:
        """What nobody waits for any more and has not come back, by source."""
        is_over = self._gave_up or time.monotonic() > self._began + self._seconds
        threads = self._hanging | (self._threads if is_over else {})
        return {name: thread for name, thread in threads.items() if thread.is_alive()}
