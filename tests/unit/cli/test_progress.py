"""A bar where somebody waits and watches, and nothing anywhere else."""

from __future__ import annotations

import io
import sys

import pytest

from megatron_nanguard.cli.progress import MANY, track


class Terminal(io.StringIO):
    """A stream that says of itself that somebody watches."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "number", "is_shown"),
    [(Terminal(), MANY, True), (Terminal(), MANY - 1, False), (io.StringIO(), MANY, False)],
)
def test_every_name_is_given_whether_a_bar_is_shown_or_not(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, number: int, is_shown: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    names = [str(each) for each in range(number)]

    assert list(track(names, "traces")) == names
    assert (f"reading {number} traces" in stream.getvalue()) == is_shown
