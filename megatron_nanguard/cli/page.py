"""Where `--html FILE` goes: refused before the work where it cannot, and written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from megatron_nanguard.errors import SettingsError
from megatron_nanguard.records.atomic_write import atomic_write


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
    """Write the page; a link stays one.

    Raises:
        SettingsError: it cannot be written.
    """
    target = file.resolve()
    try:
        with atomic_write(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _not_written(file, error) from error


def _not_written(file: Path, error: OSError) -> SettingsError:
    return SettingsError(f"--html: {file} cannot be written: {error.strerror}")
