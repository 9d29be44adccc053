"""Lay out tables: align the columns and fold the last one; in a narrow window put the cells of a row below each other.

parameter                               norm  ranks        decoder.layers.3.mlp.linear_fc1.weight
decoder.layers.3.mlp.linear_fc1.weight  nan   4, 5    or     norm nan  ranks 4, 5
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len

from megatron_nanguard.report.blocks import Tone
from megatron_nanguard.report.rendering.lines import GAP, INDENT, Line, Span, pack, pad, paragraph

NARROWEST: Final = 20
"""Smallest width of a folded last column."""


def table_lines(columns: Sequence[str], rows: Sequence[tuple[str, ...]], width: int) -> Iterator[Line]:
    """Lay out a table.

    Args:
        columns: heads; empty for rows whose first cell is a label.
        rows: cells, equally many in each row.
        width: columns of the screen.
    """
    if not rows:
        return
    everything = [tuple(columns), *rows] if columns else list(rows)
    widths = [max(map(cell_len, column)) for column in zip(*everything, strict=True)]
    before_last = len(INDENT) + sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    if not columns or before_last + min(widths[-1], max(NARROWEST, _longest_word(rows))) <= width:
        yield from _aligned(columns, rows, widths, width)
    else:
        for row in rows:
            yield from _stacked(columns, row, width)


def _aligned(
    columns: Sequence[str], rows: Sequence[tuple[str, ...]], widths: Sequence[int], width: int
) -> Iterator[Line]:
    if columns:
        yield (Span(INDENT + GAP.join(map(pad, columns, widths)), Tone.QUIET),)
    for row in rows:
        label = Span(INDENT + pad(row[0], widths[0]) + GAP, Tone.PLAIN if columns else Tone.QUIET)
        middle = Span("".join(pad(*cell) + GAP for cell in zip(row[1:-1], widths[1:-1], strict=True)))
        yield from paragraph(row[-1], width, (label, middle)) if len(row) > 1 else paragraph(row[0], width)


def _stacked(columns: Sequence[str], row: tuple[str, ...], width: int) -> Iterator[Line]:
    """Lay out the cells of one row on lines of their own: the first cell alone, then the others with their heads."""
    if row[0]:
        yield from paragraph(row[0], width)
    named = [f"{head} {cell}" for head, cell in zip(columns[1:], row[1:], strict=True) if cell]
    for parts in pack(named, cell_len, width - len(INDENT)):
        yield from paragraph(GAP.join(parts), width, (Span(INDENT * 2),))


def _longest_word(rows: Sequence[tuple[str, ...]]) -> int:
    return max((cell_len(word) for row in rows for word in row[-1].split()), default=0)
