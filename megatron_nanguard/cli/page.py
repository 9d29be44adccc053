"""Where `--html FILE` goes: refused before the work where it cannot, and written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from megatron_nanguard.errors import SettingsError


def check_target(file: Path, force: bool) -> None:
    """Check that a file may be written.

    Args:
        file: what was asked for.
        force: write over a file that is there.
    Raises:
        SettingsError: says what is in the way.
    """
    try:
        if file.exists() and not file.is_file():
            raise SettingsError(f"--html: {file} is not a regular file")
        if file.exists() and not force:
            raise SettingsError(f"--html: {file} exists; give another name, or --force to write over it")
        if not file.parent.is_dir():
            raise SettingsError(f"--html: {file.parent} is no directory")
    except OSError as error:
        raise _not_written(file, error) from error


def write_page(file: Path, text: str) -> None:
    """Write under a temporary name, then rename.

    Raises:
        SettingsError: it cannot be written.
    """
    target = file.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, target)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _not_written(file, error) from error


def _not_written(file: Path, error: OSError) -> SettingsError:
    return SettingsError(f"--html: {file} cannot be written: {error.strerror}")
