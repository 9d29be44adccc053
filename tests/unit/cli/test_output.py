"""What a command prints cannot steer the terminal, and an output of few letters is no reason to fail."""

from __future__ import annotations

import io
import sys

import pytest

from megatron_nanguard.cli.output import say


def test_lines_are_printed_and_steering_is_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    say("one\n\x1b[2Jtwo")
    say("\x9bthree", err=True)

    assert capsys.readouterr() == ("one\n\\x1b[2Jtwo\n", "\\x9bthree\n")


def test_letters_that_the_output_lacks_are_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(sent, encoding="latin-1"))

    say("é 层")
    sys.stdout.flush()

    assert sent.getvalue() == b"\xe9 \\u5c42\n"
