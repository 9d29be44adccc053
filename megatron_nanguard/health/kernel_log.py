"""Lines of the kernel's log about hardware, from the moment the log was opened.

    6,1043,5120004331,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=4711, name=python, DBE (double bit error) ...

The device file gives one record per read and never waits; it is readable for root and where the administrator lets it.
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
"""The kernel refuses to give a record to a smaller buffer."""

XID: Final = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]+:[0-9a-fA-F]+:[0-9a-fA-F]+)[^)]*\): (\d+)")
RECORD: Final = re.compile(r"^\d+,\d+,\d+,[^;]*;(.*)$", re.MULTILINE)
"""Priority, number, time and flags before the text; lines that go with it begin with a space."""
MACHINE: Final = (
    (re.compile(r"EDAC .*\bUE\b"), "EDAC UE, uncorrectable memory error"),
    (re.compile(r"EDAC .*\bCE\b"), "EDAC CE, memory error"),
    (re.compile(r"Machine Check Exception"), "machine check exception, uncorrected"),
    (re.compile(r"\[Hardware Error\]: event severity: (fatal|recoverable)"), "firmware: uncorrected hardware error"),
    (re.compile(r"\[Hardware Error\]: event severity: corrected"), "firmware: corrected hardware error"),
)
"""What a line is counted as; first match wins."""


class KernelLog:
    """The log from now on.

    Args:
        path: the kernel's device file.
    """

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        self.why_not = ""
        """Why it cannot be read; empty when it can."""
        self._counts: dict[str, Counter[str]] = {"host": Counter()}
        self._lock = threading.Lock()
        """A look may begin while another one is still reading."""
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self.why_not = f"{path}: {error.strerror}"

    def close(self) -> None:
        """Read no more of it."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def counts(self) -> dict[str, Counter[str]]:
        """Lines since the log was opened, by kind: under "host", and under the PCI address that they name."""
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
                continue  # records were overwritten before they were read; the next read goes on after them
            if not record:
                return
            yield from RECORD.findall(record.decode(errors="replace"))
