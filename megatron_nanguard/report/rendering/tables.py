"""Lay out what has columns: tables, grids of ranks, and bars.

A table has aligned columns, with the last one folded; in a narrow window the cells of a row are below each other.

parameter                               norm  ranks        decoder.layers.3.mlp.linear_fc1.weight
decoder.layers.3.mlp.linear_fc1.weight  nan   4, 5    or     norm nan  ranks 4, 5

      dp0    dp1                  decoder.layers.2  ######     0.69
pp0   0x 1x  2~ 3~                decoder.layers.3  #####      0.65  NaN on ranks 4, 5
pp1   4x 5!  6~ 7~
! origin   x bad before the reduction   ~ infected by it
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len

from megatron_nanguard.report.blocks import Bar, Grid, GridMark, Tone
from megatron_nanguard.report.rendering.lines import GAP, INDENT, Glyphs, Line, Span, pack, pad, paragraph

NARROWEST: Final = 20
"""Smallest width of a folded last column."""
LONGEST_BAR: Final = 24
SHORTEST_BAR: Final = 6
DECADES: Final = 1.0
"""Smallest range that the length of a bar shows, so that nearly equal numbers look equal."""

Cell = tuple[GridMark, ...]


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
    longest_word = max((cell_len(word) for row in rows for word in row[-1].split()), default=0)
    if not columns or before_last + min(widths[-1], max(NARROWEST, longest_word)) <= width:
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


def grid_lines(grid: Grid, width: int) -> Iterator[Line]:
    """Draw a grid. If it is too wide, leave out the names in its cells; put columns that still do not fit below."""
    named = _column_widths(grid, is_named=True)
    labels = max((cell_len(label) for label, _ in grid.rows), default=0)
    start = len(INDENT) + labels
    is_named = start + sum(named) + len(GAP) * len(named) <= width
    widths = named if is_named else _column_widths(grid, is_named=False)
    for number, columns in enumerate(pack(range(len(widths)), widths.__getitem__, width - start)):
        if number:
            yield ()
        heads = "".join(GAP + pad(grid.columns[column], widths[column]) for column in columns)
        yield (Span(INDENT + " " * labels + heads, Tone.QUIET),)
        for label, cells in grid.rows:
            spans = [Span(INDENT + pad(label, labels), Tone.QUIET)]
            for column in columns:
                spans += (Span(GAP), *_cell(cells[column], widths[column], is_named))
            yield tuple(spans)
    yield from _legend(grid, width)


def bar_lines(bars: Sequence[Bar], width: int, glyphs: Glyphs) -> Iterator[Line]:
    """Draw each number as a bar; a missing number gets a label and no bar."""
    labels = max((cell_len(bar.label) for bar in bars), default=0)
    texts = max((cell_len(bar.text) for bar in bars), default=0)
    longest = max(SHORTEST_BAR, min(LONGEST_BAR, width - len(INDENT) - labels - texts - 2 * len(GAP)))
    values = [bar.value for bar in bars if bar.value is not None and bar.value > 0.0]
    top = math.log10(max(values)) if values else 0.0
    span = max(DECADES, top - math.log10(min(values))) if values else DECADES
    for bar in bars:
        length = _length(bar.value, top, span, longest)
        drawn = pad(glyphs.bar * length, longest)
        first = (Span(INDENT + pad(bar.label, labels) + GAP), Span(drawn, bar.tone), Span(GAP))
        yield from paragraph(bar.text, width, first, bar.tone)


def _length(value: float | None, top: float, span: float, longest: int) -> int:
    if value is None or not value > 0.0:
        return 0
    return max(1, round(longest * (1.0 + (math.log10(value) - top) / span)))


def _column_widths(grid: Grid, *, is_named: bool) -> list[int]:
    widths = [cell_len(head) for head in grid.columns]
    for _, cells in grid.rows:
        widths = [
            max(width, sum(cell_len(span.text) for span in _cell(cell, 0, is_named)))
            for width, cell in zip(widths, cells, strict=True)
        ]
    return widths


def _cell(cell: Cell, width: int, is_named: bool) -> list[Span]:
    spans = []
    for number, mark in enumerate(cell):
        gap = " " if number and is_named and mark.text else ""
        spans.append(Span(gap + (mark.text if is_named else "") + mark.tone.value, mark.tone))
    used = sum(cell_len(span.text) for span in spans)
    return [*spans, Span(" " * (width - used))]


def _legend(grid: Grid, width: int) -> Iterator[Line]:
    for entries in pack(grid.legend, lambda entry: cell_len(f"{entry[0].value} {entry[1]}"), width):
        yield tuple(span for tone, words in entries for span in (Span(GAP), Span(f"{tone.value} {words}", tone)))
    if grid.caption:
        yield from paragraph(grid.caption, width, tone=Tone.QUIET)
