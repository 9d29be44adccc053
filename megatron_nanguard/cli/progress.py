"""A progress bar for a person who waits while thousands of files are read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

MANY = 256
"""Files that take long enough to be worth a bar."""


def track(names: Sequence[str], what: str) -> Iterable[str]:
    """Show how many of the files were read; nothing where they are few, or where nobody watches.

    Args:
        names: of the files.
        what: they are, such as "traces".
    """
    if len(names) < MANY or not sys.stderr.isatty():
        return names
    from rich.console import Console
    from rich.progress import track as with_bar

    return with_bar(names, f"reading {len(names)} {what}", console=Console(stderr=True), transient=True)
