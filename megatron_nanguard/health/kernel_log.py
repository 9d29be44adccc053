"""Lines of the kernel's log about hardware, from the moment the log was opened.

    6,1043,5120004331,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=4711, name=python, DBE (double bit error) ...

One read of the device file returns one record, without waiting. Only root can read it, unless the administrator allows
others to.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from megatron_nanguard.health.severity import name_xid

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


class KernelLog:
    """The log from now on.

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
