"""Write a file of a run so that a reader never sees half of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Give a temporary path beside the target; rename it to the target when the block has ended without an error.

    After an error the temporary file is gone and the target is what it was before.

    Args:
        target: the file to write; its directory must be there.
    Yields:
        The path that the block has to write.
    Raises:
        OSError: the file cannot be renamed.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
