"""Print blocks on a terminal: the layout of the plain text, with colours and frames, as wide as the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TextIO

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from megatron_nanguard.printable import printable
from megatron_nanguard.report.blocks import Block, Tone
from megatron_nanguard.report.rendering.layout import body_lines, command_lines
from megatron_nanguard.report.rendering.lines import ASCII, UNICODE, Glyphs, Line, fold

WIDEST: Final = 120
FRAME: Final = 3
"""Columns that a frame takes, with the blank on its right side."""

STYLES: Final = {
    Tone.WORST: "bold red",
    Tone.BAD: "red",
    Tone.SPREAD: "yellow",
    Tone.GOOD: "green",
    Tone.UNKNOWN: "magenta",
    Tone.QUIET: "dim",
    Tone.PLAIN: "",
}
TITLE: Final = "bold cyan"


def show(blocks: Sequence[Block], console: Console) -> None:
    """Print blocks one under the other.

    Args:
        blocks: the sections, in order.
        console: the console of the window, which knows its width and its colours.
    """
    glyphs = UNICODE if console.encoding.startswith("utf") else ASCII
    width = min(console.width, WIDEST)
    for number, block in enumerate(blocks):
        if number:
            console.line()
        if block.tone is Tone.PLAIN:
            _print_plain(block, console, width, glyphs)
        else:
            _print_framed(block, console, width, glyphs)


def console_on(stream: TextIO, *, has_colour: bool) -> Console:
    """Make a console on a stream; rich itself respects NO_COLOR and dumb terminals."""
    return Console(file=stream, no_color=True if not has_colour else None, highlight=False, markup=False, emoji=False)


def _print_plain(block: Block, console: Console, width: int, glyphs: Glyphs) -> None:
    for part in fold(printable(block.title), width):
        console.print(Text(part, style=TITLE), soft_wrap=True)
    for line in body_lines(block, width, glyphs):
        console.print(_styled(line), soft_wrap=True)


def _print_framed(block: Block, console: Console, width: int, glyphs: Glyphs) -> None:
    """Print a section in a frame."""
    style = STYLES[block.tone]
    inside = Text("\n").join(map(_styled, body_lines(replace(block, commands=()), width - FRAME, glyphs)))
    title = Text(printable(block.title), style=style)
    console.print(Panel(inside, title=title, title_align="left", border_style=style, width=width, padding=0))
    # Commands are printed outside of the frame, since its sides would be copied with them.
    for line in command_lines(block):
        console.print(_styled(line), soft_wrap=True)


def _styled(line: Line) -> Text:
    text = Text.assemble(*((span.text, STYLES[span.tone]) for span in line), no_wrap=True)
    text.rstrip()
    return text
