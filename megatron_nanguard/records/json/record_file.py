"""Read one record from one file of a run; whatever the file is, an error names it in one sentence."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, TypeVar

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.json.conversion import from_json

LARGEST_BYTES: Final = 256 * 1024 * 1024
"""More than any file of a run has: the merged incident of a hundred thousand ranks stays below a tenth of it."""

Record = TypeVar("Record")


def read_record(cls: type[Record], path: Path) -> Record:
    """Read one file.

    Args:
        cls: the dataclass that it holds.
        path: where it is.
    Raises:
        PostmortemError: it cannot be read, or is not what it should be.
    """
    name = str(path)
    return from_json(cls, read_bytes(path, name), source=name)


def read_bytes(path: Path, name: str) -> bytes:
    """Read a regular file of sensible size; a pipe or a device under the name of a file would never end.

    Args:
        path: where it is.
        name: how the message of an error names it.
    Raises:
        PostmortemError: it cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode):
                raise PostmortemError(f"{name}: cannot be read: not a regular file")
            if facts.st_size > LARGEST_BYTES:
                raise PostmortemError(
                    f"{name}: cannot be read: {facts.st_size} bytes, expected at most {LARGEST_BYTES}; no file of a "
                    "run is as large"
                )
            return _read_all(file, facts.st_size)
        finally:
            os.close(file)
    except OSError as error:
        raise PostmortemError(f"{name}: cannot be read: {error.strerror}") from error


def _read_all(file: int, size: int) -> bytes:
    """Read up to the size that the file had when it was opened; a network file system may return less at a time."""
    parts = []
    while size > 0 and (part := os.read(file, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
