"""Readings of the host: memory errors that the kernel counts, and lines of its log about hardware.

6,1043,5120004331,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=4711, name=python, DBE (double bit error) ...
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from megatron_nanguard.health.polling import SourceAnswer
from megatron_nanguard.health.severity import name_xid
from megatron_nanguard.records.machine.health import HealthReading

MEMORY_CONTROLLERS: Final = Path("/sys/devices/system/edac/mc")
COUNT_FILES: Final = {"ue_count": "memory errors, uncorrectable", "ce_count": "memory errors, corrected"}

KERNEL_LOG: Final = Path("/dev/kmsg")
RECORD_BYTES: Final = 8192
"""The kernel refuses to write a record into a smaller buffer."""

XID: Final = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]+:[0-9a-fA-F]+:[0-9a-fA-F]+)[^)]*\): (\d+)")
RECORD: Final = re.compile(r"^\d+,\d+,\d+,[^;]*;(.*)$", re.MULTILINE)
"""The text follows priority, number, time and flags; continuation lines begin with a space."""
MACHINE: Final = (
    (re.compile(r"EDAC .*\bUE\b"), "EDAC UE, uncorrectable memory error"),
    (re.compile(r"EDAC .*\bCE\b"), "EDAC CE, memory error"),
    (re.compile(r"Machine Check Exception"), "machine check exception, uncorrected"),
    (re.compile(r"\[Hardware Error\]: event severity: (fatal|recoverable)"), "firmware: uncorrected hardware error"),
    (re.compile(r"\[Hardware Error\]: event severity: corrected"), "firmware: corrected hardware error"),
)
"""Pattern of a line, and the name of its counter; first match wins."""


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


class KernelLog:
    """The kernel's log from now on.

    One read of the device file returns one record, without waiting. Only root can read it, unless the administrator
    allows others to.

    Args:
        path: the kernel's device file.
    Attributes:
        problem: why the log cannot be read; empty when it can.
    """

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        self.problem = ""
        self._counts: dict[str, Counter[str]] = {"host": Counter()}
        self._lock = threading.Lock()  # a poll may begin while an earlier one still reads
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self.problem = f"{path}: {error.strerror}"

    def close(self) -> None:
        """Close the device file."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def counts(self) -> dict[str, Counter[str]]:
        """Count the lines about hardware since the log was opened.

        Returns:
            For each device (its PCI address; "host" where a line names none) the number of lines of each kind.
        """
        with self._lock:
            for line in self._lines():
                self._count(line)
            return {part: Counter(counts) for part, counts in self._counts.items()}

    def _count(self, line: str) -> None:
        if xid := XID.search(line):
            self._counts.setdefault(xid[1].lower(), Counter())[name_xid(int(xid[2]))] += 1
            return
        kind = next((kind for words, kind in MACHINE if words.search(line)), None)
        if kind is not None:
            self._counts["host"][kind] += 1

    def _lines(self) -> Iterator[str]:
        if self._descriptor < 0:
            return
        while True:
            try:
                record = os.read(self._descriptor, RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # the kernel has overwritten records; the next read continues after them
            if not record:
                return
            yield from RECORD.findall(record.decode(errors="replace"))
