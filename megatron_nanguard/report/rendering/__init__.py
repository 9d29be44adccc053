"""Blocks as lines of spans, for any width: what the plain text and the terminal share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from megatron_nanguard.printable import printable
from megatron_nanguard.report.blocks import Block, Tone
from megatron_nanguard.report.rendering.charts import bar_lines, grid_lines
from megatron_nanguard.report.rendering.lines import MARGIN, Glyphs, Line, Span, paragraph
from megatron_nanguard.report.rendering.points import point_lines, tree_lines
from megatron_nanguard.report.rendering.tables import table_lines
from megatron_nanguard.report.texts import each_text

Form = TypeVar("Form")


def body(block: Block, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """Everything of a block but its title.

    Args:
        block: one section.
        width: columns of the screen; only a single word that is longer goes beyond.
        glyphs: what pictures are drawn with.
    """
    block = printed(block)
    for sentence in block.text:
        yield from paragraph(sentence, width, tone=block.tone)
    if block.grid is not None:
        yield from grid_lines(block.grid, width)
    yield from table_lines(block.columns, block.rows, width)
    yield from bar_lines(block.bars, width, glyphs)
    yield from point_lines(block.points, width)
    yield from tree_lines(block.tree, width, glyphs)
    for note in block.notes:
        yield from paragraph(note, width, tone=Tone.QUIET)
    yield from command_lines(block)


def command_lines(block: Block) -> Iterator[Line]:
    """Commands, each on a line of its own that is never broken."""
    for command in block.commands:
        yield (*MARGIN, Span(printable(command)))


def printed(form: Form) -> Form:
    """Spell out what would steer the terminal, in every text of a form."""
    return each_text(form, printable)
