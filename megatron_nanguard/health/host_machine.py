"""Readings of the host: memory errors that the kernel counts, and its log."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from megatron_nanguard.health.kernel_log import KernelLog
from megatron_nanguard.health.polling import SourceAnswer
from megatron_nanguard.records.machine.health import HealthReading

MEMORY_CONTROLLERS: Final = Path("/sys/devices/system/edac/mc")
COUNT_FILES: Final = {"ue_count": "memory errors, uncorrectable", "ce_count": "memory errors, corrected"}


class HostMachine:
    """The host of this rank, as the kernel describes it; missing counters are no problem.

    Args:
        controllers: directory of the memory controllers.
        kernel_log: opened when the run began; None opens it now.
    """

    name = "host"

    def __init__(self, controllers: Path = MEMORY_CONTROLLERS, kernel_log: KernelLog | None = None) -> None:
        self._controllers = controllers
        self._log = kernel_log or KernelLog()

    def close(self) -> None:
        """Close the kernel log."""
        self._log.close()

    def read(self) -> SourceAnswer:
        """Counters of the memory controllers, and lines of the log since it was opened."""
        counted = memory_errors(self._controllers)
        found = [HealthReading("edac", "host", counted, {})] if counted else []
        lines = self._log.counts()
        found += [HealthReading("kernel log", part, dict(lines[part]), {}) for part in lines if lines[part]]
        return SourceAnswer(tuple(found))


def memory_errors(controllers: Path = MEMORY_CONTROLLERS) -> dict[str, int]:
    """Error counts over all memory controllers; empty where the kernel has no driver for them."""
    return {
        name: sum(int(path.read_text()) for path in paths)
        for file, name in COUNT_FILES.items()
        if (paths := sorted(controllers.glob(f"mc*/{file}")))
    }
