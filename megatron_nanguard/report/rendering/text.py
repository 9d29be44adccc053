"""Blocks as plain text, for a pipe, a log file and a terminal of any kind.

Bad parameters
  name                                       where   pattern  ranks
  decoder.layers.3.mlp.linear_fc1.weight     local   nan      5
"""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.printable import printable
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.rendering import body
from megatron_nanguard.report.rendering.lines import ASCII, fold, text_of

WIDTH = 120


def render(blocks: Sequence[Block], width: int = WIDTH) -> str:
    """Lay blocks out one under the other.

    Args:
        blocks: the sections, in order.
        width: columns of a line; only a single word that is longer goes beyond.
    """
    return "\n".join(_text(block, width) for block in blocks)


def _text(block: Block, width: int) -> str:
    lines = (*fold(printable(block.title), width), *map(text_of, body(block, width, ASCII)))
    return "".join(f"{line}\n" for line in lines)
