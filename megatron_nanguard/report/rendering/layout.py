"""Lay out blocks as lines of text of any width, for the plain text and for the coloured terminal.

Bad parameters
  name                                       where   pattern  ranks
  decoder.layers.3.mlp.linear_fc1.weight     local   nan      5
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from megatron_nanguard.printable import printable
from megatron_nanguard.report.blocks import Block, Tone, each_text
from megatron_nanguard.report.rendering.lines import ASCII, MARGIN, Glyphs, Line, Span, fold, paragraph, text_of
from megatron_nanguard.report.rendering.points import point_lines, tree_lines
from megatron_nanguard.report.rendering.tables import bar_lines, grid_lines, table_lines

WIDTH: Final = 120


def plain_text(blocks: Sequence[Block], width: int = WIDTH) -> str:
    """Lay out blocks one below the other, without colour.

    Args:
        blocks: the sections, in order.
        width: columns of a line; only a word that is longer than this exceeds it.
    """
    return "\n".join(_text(block, width) for block in blocks)


def body_lines(block: Block, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """Lay out everything of a block but its title.

    Args:
        block: one section.
        width: columns of a line; only a word that is longer than this exceeds it.
        glyphs: characters that bars and trees are drawn with.
    """
    # Characters that would steer the terminal are spelled out.
    block = each_text(block, printable)
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
    """Lay out the commands of a block, each on one unbroken line so that it can be copied."""
    for command in block.commands:
        yield (*MARGIN, Span(printable(command)))


def _text(block: Block, width: int) -> str:
    lines = (*fold(printable(block.title), width), *map(text_of, body_lines(block, width, ASCII)))
    return "".join(f"{line}\n" for line in lines)
