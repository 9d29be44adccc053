"""The report on a terminal: colours, frames, and what is left of them without colour."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from megatron_nanguard.report import blocks_of, print_report
from megatron_nanguard.report.blocks import Block, Point, Tone
from megatron_nanguard.report.opened_incident import OpenedIncident, open_incident
from megatron_nanguard.report.rendering.terminal import console_on, show
from tests.unit.factories import incident
from tests.unit.report.factories import bundled, report_text
from tests.unit.report.replayed import REPLAYED

EXPECTED = Path(__file__).parents[1] / "expected"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.TextIOWrapper):
    """A window of some width that takes text of some encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding=encoding)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        return self.bytes.getvalue().decode(self.encoding)


@pytest.fixture(autouse=True)
def window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def shown(*blocks: Block, has_colour: bool = True, encoding: str = "utf-8") -> str:
    terminal = Terminal(encoding)
    show(blocks, console_on(terminal, has_colour=has_colour))
    return terminal.text()


@pytest.mark.parametrize("width", [80, 60])
def test_a_replayed_incident_reads_as_a_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    expected = (EXPECTED / f"terminal_{width}.txt").read_text()

    assert ESCAPE.sub("", shown(*blocks_of(REPLAYED))) == expected
    assert max(map(len, expected.splitlines())) <= width


def test_the_first_screen_ends_with_a_command_on_one_unbroken_line(tmp_path: Path) -> None:
    opened = OpenedIncident(REPLAYED.incident, bundled(tmp_path), REPLAYED.rows)

    lines = ESCAPE.sub("", shown(*blocks_of(opened))).splitlines()[:12]

    assert [word for word in ("cause", "job", "next") if any(f"  {word} " in line for line in lines)] == [
        "cause",
        "job",
        "next",
    ]
    assert f"  python {tmp_path}/bundle/repro.py" in lines


def test_a_tone_is_shown_as_a_colour_and_plain_text_has_no_colour() -> None:
    assert shown(Block("T", points=(Point("bad", tone=Tone.BAD), Point("plain")))) == (
        "\x1b[1;36mT\x1b[0m\n  \x1b[31mbad\x1b[0m\n  plain\n"
    )


@pytest.mark.parametrize("way", ["option", "environment"])
def test_without_colour_the_words_are_the_same(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = shown(*blocks_of(REPLAYED))
    if way == "environment":
        monkeypatch.setenv("NO_COLOR", "1")
    plain = shown(*blocks_of(REPLAYED), has_colour=way == "environment")

    assert not re.search(r"\x1b\[[0-9;]*3\d", plain)
    assert re.search(r"\x1b\[[0-9;]*3\d", coloured)
    assert ESCAPE.sub("", plain) == ESCAPE.sub("", coloured)


def test_a_terminal_without_unicode_gets_ascii_characters() -> None:
    framed = shown(*blocks_of(REPLAYED), encoding="ascii")

    assert "`- rank 7 by DP gradient all-reduce" in ESCAPE.sub("", framed)
    assert framed.isascii()


def test_text_from_a_file_can_neither_steer_the_terminal_nor_set_styles() -> None:
    evil = "\x1b[2J[bold]:smile:"

    text = ESCAPE.sub("", shown(Block(evil, text=(evil,)), Block(evil, text=(evil,), tone=Tone.WORST)))

    assert "\x1b" not in text
    assert text.count("\\x1b[2J[bold]:smile:") == 4


def test_a_long_path_goes_beyond_the_window_in_one_piece() -> None:
    path = "/data/" + "long-directory/" * 20

    assert f"  {path}\n" in ESCAPE.sub("", shown(Block("T", rows=((path,),))))


def test_a_pipe_gets_plain_text_and_a_terminal_does_not(tmp_path: Path) -> None:
    pipe, terminal = io.StringIO(), Terminal()
    opened = open_incident(incident(), tmp_path)
    print_report(opened, pipe)
    print_report(opened, terminal)

    assert pipe.getvalue() == report_text(incident(), tmp_path)
    assert terminal.text().splitlines()[0].endswith("\u256e\x1b[0m")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_outside_of_the_encoding_of_a_pipe_are_spelled_out(tmp_path: Path, encoding: str) -> None:
    sent = io.BytesIO()
    pipe = io.TextIOWrapper(sent, encoding=encoding)
    print_report(open_incident(incident(), tmp_path), pipe, lang="zh")
    pipe.flush()

    told = report_text(incident(), tmp_path, "zh")
    assert not told.isascii()
    assert sent.getvalue() == told.encode(encoding, "backslashreplace")
