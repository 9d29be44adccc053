"""A command as a person meets it: what it prints, and how it leaves."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from megatron_nanguard.cli import main


class Left(NamedTuple):
    """How a command left."""

    code: object
    out: str
    err: str


def leave(capsys: pytest.CaptureFixture[str], *words: object) -> Left:
    """Call the entry point as the console script does; anything but an exit passes through."""
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return Left(left.value.code, *capsys.readouterr())
