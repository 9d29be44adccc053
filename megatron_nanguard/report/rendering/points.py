"""Lay out points as a list with indents, or as a tree with guides.

1. faulty operator (likely, 0.62)        rank 5, backward
   + finite values in, NaN out           |- rank 4 by TP all-reduce
                                         |  `- rank 6 by the reduction
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from megatron_nanguard.report.blocks import Point, Tone
from megatron_nanguard.report.rendering.lines import INDENT, Glyphs, Line, Span, fold, paragraph


def point_lines(points: Sequence[Point], width: int, indent: str = INDENT) -> Iterator[Line]:
    """Lay out a list; the points below a point are indented to its first word."""
    for point in points:
        mark = f"{point.mark} " if point.mark else ""
        tone = Tone.PLAIN if mark else point.tone
        yield from paragraph(point.text, width, (Span(indent), Span(mark, point.tone)), tone)
        inner = indent + " " * max(len(INDENT), cell_len(mark))
        if point.command:
            yield (Span(inner + point.command),)
        yield from point_lines(point.below, width, inner)


def tree_lines(points: Sequence[Point], width: int, glyphs: Glyphs) -> Iterator[Line]:
    """Lay out a tree; the first level is at the margin, all others are behind guides."""
    for point in points:
        yield from _branch(point, width, glyphs, INDENT, INDENT)


def _branch(point: Point, width: int, glyphs: Glyphs, first: str, then: str) -> Iterator[Line]:
    under = glyphs.down if point.below else " " * len(glyphs.down) if then != INDENT else ""
    lines = fold(f"{point.text} {point.detail}".rstrip(), width - len(then) - len(under))
    left = len("".join(point.text.split()))
    for number, line in enumerate(lines):
        cut = _cut_after(line, left)
        left -= len("".join(line[:cut].split()))
        start = Span(then + under if number else first, Tone.QUIET)
        yield (start, Span(line[:cut], point.tone), Span(line[cut:], Tone.QUIET))
    for child in point.below:
        is_last = child is point.below[-1]
        guide, beside = (glyphs.last, " " * len(glyphs.down)) if is_last else (glyphs.fork, glyphs.down)
        yield from _branch(child, width, glyphs, then + guide, then + beside)


def _cut_after(line: str, letters: int) -> int:
    """Return the index just behind the given number of characters that are no blanks."""
    for place, letter in enumerate(line):
        if letters <= 0:
            return place
        letters -= not letter.isspace()
    return len(line)
