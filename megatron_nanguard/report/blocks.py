"""The neutral forms between what is said and how it looks.

A section makes a block; a renderer lays blocks out and knows nothing of incidents. What a block holds is shown in the
order of its fields, and most blocks hold one or two of them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Form = TypeVar("Form")


class Tone(enum.Enum):
    """How grave something is: every renderer has a colour for it, and a sign for eyes or terminals without colour.

    Attributes:
        WORST: where it began.
        BAD: bad itself.
        SPREAD: bad through others.
        GOOD: nothing bad.
        UNKNOWN: nothing is known.
        QUIET: less than the rest: labels, guides.
        PLAIN: neither.
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
    """One member of a cell of a grid.

    Attributes:
        tone: what is shown.
        text: its name, such as a rank; empty where many are shown.
    """

    tone: Tone
    text: str = ""


@dataclass(frozen=True)
class Grid:
    """A small picture: what stands where, in rows and columns.

    Attributes:
        columns: head of each column.
        rows: name of each row and its cells, as many as there are columns.
        legend: the tones that occur, in words.
        caption: how to read a cell.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[GridMark, ...], ...]], ...]
    legend: tuple[tuple[Tone, str], ...]
    caption: str = ""


@dataclass(frozen=True)
class Bar:
    """A number as a length; lengths of one block compare by their logarithm.

    Attributes:
        label: what the number is of.
        value: the number; null where there is none to draw.
        text: the number as it is told, and what else there is to say.
        tone: how grave it is.
    """

    label: str
    value: float | None
    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class Point:
    """A point of a list, with points below it.

    Attributes:
        text: what it says.
        mark: what stands before it, such as "+"; empty for nothing.
        tone: of its mark, and of its text where it has none.
        detail: goes on from the text in a quieter voice.
        command: to copy, on a line of its own below the text.
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
    """One section, ready to be laid out.

    Attributes:
        title: its heading.
        text: sentences that come first.
        grid: a picture.
        columns: names of the columns; empty for rows without a head, whose first cell is a label.
        rows: cells, all rows equally many.
        bars: numbers as lengths.
        points: a list.
        tree: what led to what, drawn with guides.
        notes: lines after all that.
        commands: lines to copy, which nothing breaks or frames.
        tone: how grave the section as a whole is; what is not plain stands out.
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
        change: from the old text to the new one; keys of dictionaries stay as they are.
    """
    value: Any = form
    if isinstance(value, str):
        value = change(value)
    elif isinstance(value, (tuple, list)):
        value = type(value)(each_text(item, change) for item in value)
    elif isinstance(value, dict):
        value = {key: each_text(item, change) for key, item in value.items()}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: each_text(getattr(value, field.name), change) for field in dataclasses.fields(value)}
        value = dataclasses.replace(value, **fields)
    return value  # type: ignore[no-any-return]
