"""Make lines of spans, each with a tone, and fold text into such lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from rich.cells import cell_len

from megatron_nanguard.report.blocks import Tone

Item = TypeVar("Item")

INDENT: Final = "  "
GAP: Final = "  "
"""Between two columns."""

_WIDE = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef"
_PIECES = re.compile(rf"\s+|[{_WIDE}]|[^\s{_WIDE}]+")
"""Words and blanks; ideographs are separate pieces, since a line may break between them."""


class Span(NamedTuple):
    """A piece of a line.

    Attributes:
        text: its text, without a line break.
        tone: how grave it is.
    """

    text: str
    tone: Tone = Tone.PLAIN


Line = tuple[Span, ...]
MARGIN: Line = (Span(INDENT),)


class Glyphs(NamedTuple):
    """The characters that pictures are drawn with.

    Attributes:
        bar: one step of a bar.
        fork: before a point of a tree that has a next one.
        last: before the last point.
        down: beside the points below a point that has a next one.
    """

    bar: str
    fork: str
    last: str
    down: str


ASCII: Final = Glyphs("#", "|- ", "`- ", "|  ")
UNICODE: Final = Glyphs("\u2587", "\u251c\u2500 ", "\u2514\u2500 ", "\u2502  ")


def text_of(line: Line) -> str:
    """Join the texts of the spans of a line."""
    return "".join(span.text for span in line).rstrip()


def pad(text: str, width: int) -> str:
    """Pad a text with blanks up to a number of columns on the screen."""
    return text + " " * (width - cell_len(text))


def fold(text: str, width: int) -> list[str]:
    """Break a sentence into lines; a word, such as a path or a parameter name, is never broken."""
    lines = [""]
    for piece in _PIECES.findall(text):
        if cell_len(lines[-1] + piece.rstrip()) <= width or not lines[-1]:
            lines[-1] += piece if lines[-1] or not piece.isspace() else ""
        else:
            lines.append(piece.lstrip())
    return [line.rstrip() for line in lines]


def pack(items: Iterable[Item], width_of: Callable[[Item], int], room: int) -> Iterator[list[Item]]:
    """Split items into groups that each fit on one line, with a gap before each item; a group has at least one item.

    Args:
        items: what is shown side by side.
        width_of: the columns of the screen that an item takes.
        room: the columns of a line.
    """
    group: list[Item] = []
    used = 0
    for item in items:
        needed = len(GAP) + width_of(item)
        if group and used + needed > room:
            yield group
            group, used = [], 0
        group.append(item)
        used += needed
    if group:
        yield group


def paragraph(text: str, width: int, first: Line = MARGIN, tone: Tone = Tone.PLAIN) -> Iterator[Line]:
    """Fold a sentence behind a given beginning; further lines are indented to its first word.

    Args:
        text: the sentence.
        width: columns of the screen.
        first: the beginning of the first line.
        tone: tone of the sentence.
    """
    indent = cell_len("".join(span.text for span in first))
    for number, line in enumerate(fold(text, width - indent)):
        yield (*(first if number == 0 else (Span(" " * indent),)), Span(line, tone))
