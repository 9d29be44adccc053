"""Define the blocks that sections make and renderers lay out: text, tables and simple pictures, without a layout.

A section makes a block. A renderer lays blocks out and knows nothing about incidents. The contents of a block are shown
in the order of its fields; most blocks use one or two of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from megatron_nanguard.records.json.fields import map_leaves

Form = TypeVar("Form")


class Tone(enum.Enum):
    """How grave something is. A renderer shows it by a colour, and by the value of the member where there is no colour.

    Attributes:
        WORST: the fault began here.
        BAD: bad before other ranks could make it bad.
        SPREAD: made bad by others.
        GOOD: not bad.
        UNKNOWN: no evidence for either.
        QUIET: less important than the rest, such as labels and guides.
        PLAIN: ordinary text.
    """

    WORST = "!"
    BAD = "x"
    SPREAD = "~"
    GOOD = "."
    UNKNOWN = "?"
    QUIET = " "
    PLAIN = ""


@dataclass(frozen=True)
class GridMark:
    """One of the members that are shown in a cell of a grid.

    Attributes:
        tone: the state of the member.
        text: its name, such as a rank; empty where there are many members.
    """

    tone: Tone
    text: str = ""


@dataclass(frozen=True)
class Grid:
    """A picture of cells in rows and columns.

    Attributes:
        columns: the head of each column.
        rows: the name of each row and its cells, one per column.
        legend: the tones that occur and their names.
        caption: how to read a cell.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[GridMark, ...], ...]], ...]
    legend: tuple[tuple[Tone, str], ...]
    caption: str = ""


@dataclass(frozen=True)
class Bar:
    """A number that is drawn as a length, by its logarithm.

    Attributes:
        label: what the number measures.
        value: the number; None where there is none to draw.
        text: the number in words, and remarks on it.
        tone: how grave it is.
    """

    label: str
    value: float | None
    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class Point:
    """A point of a list or tree, with points below it.

    Attributes:
        text: its sentence.
        mark: a sign before the text, such as "+"; may be empty.
        tone: the tone of the mark, or of the text where there is no mark.
        detail: more text, in the quiet tone.
        command: a command to copy, on a line of its own below the text.
        below: points that belong to it.
    """

    text: str
    mark: str = ""
    tone: Tone = Tone.PLAIN
    detail: str = ""
    command: str = ""
    below: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Block:
    """One section of the report.

    Attributes:
        title: its heading.
        text: sentences at the beginning.
        grid: a picture of cells.
        columns: heads of a table; empty for a table without heads, whose first cells are labels.
        rows: the cells of the table, equally many in each row.
        bars: numbers that are drawn as lengths.
        points: a list.
        tree: points that are drawn with guides to the points below them.
        notes: remarks at the end.
        commands: commands to copy; they are neither broken nor framed.
        tone: how grave the whole section is; it is framed unless it is PLAIN.
    """

    title: str
    text: tuple[str, ...] = ()
    grid: Grid | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    bars: tuple[Bar, ...] = ()
    points: tuple[Point, ...] = ()
    tree: tuple[Point, ...] = ()
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    tone: Tone = Tone.PLAIN


def each_text(form: Form, change: Callable[[str], str]) -> Form:
    """Copy a form with every text in it changed.

    Args:
        form: a text, a tuple, list, dictionary or data class, and whatever these hold.
        change: makes the new text from the old one; keys of dictionaries stay as they are.
    """
    changed: Form = map_leaves(form, lambda value: change(value) if isinstance(value, str) else value)
    return changed
