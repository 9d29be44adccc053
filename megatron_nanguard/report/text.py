"""Blocks as plain text, for a terminal of any kind and for a log file.

Bad parameters
  name                                       where   pattern  ranks
  decoder.layers.3.mlp.linear_fc1.weight     local   nan      5
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from megatron_nanguard.report.blocks import Block

WIDTH = 120
INDENT = "  "


def render(blocks: Sequence[Block]) -> str:
    """Lay blocks out one under the other."""
    return "\n".join("\n".join(_lines(block)) + "\n" for block in blocks)


def _lines(block: Block) -> Iterator[str]:
    yield block.title
    for sentence in block.text:
        yield from _wrapped(sentence)
    table = ([block.columns] if block.columns else []) + list(block.rows)
    yield from _table(table)
    for note in block.notes:
        yield from _wrapped(note)


def _wrapped(sentence: str) -> list[str]:
    """Fold a sentence; words such as paths and parameter names are never broken."""
    return textwrap.wrap(
        sentence,
        WIDTH,
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield (INDENT + "  ".join(cells)).rstrip()
