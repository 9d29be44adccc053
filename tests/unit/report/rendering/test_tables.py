"""Tables, grids and bars at several widths."""

from __future__ import annotations

import math

import pytest

from megatron_nanguard.report.blocks import Bar, Grid, GridMark, Tone
from megatron_nanguard.report.rendering.lines import ASCII, Span, text_of
from megatron_nanguard.report.rendering.tables import bar_lines, grid_lines, table_lines

COLUMNS = ("parameter", "norm", "what stands out")
ROWS = (("decoder.layers.3.mlp", "nan", "it began here, in backward"), ("head", "0.5", ""))


def told(width: int, columns: tuple[str, ...] = COLUMNS, rows: tuple[tuple[str, ...], ...] = ROWS) -> str:
    return "\n".join(map(text_of, table_lines(columns, rows, width)))


ALIGNED = """\
  parameter             norm  what stands out
  decoder.layers.3.mlp  nan   it began here, in backward
  head                  0.5"""

FOLDED = """\
  parameter             norm  what stands out
  decoder.layers.3.mlp  nan   it began here, in
                              backward
  head                  0.5"""

STACKED = """\
  decoder.layers.3.mlp
    norm nan
    what stands out it began here, in
    backward
  head
    norm 0.5"""


@pytest.mark.parametrize(("width", "text"), [(80, ALIGNED), (50, FOLDED), (40, STACKED)])
def test_a_table_is_aligned_then_folded_then_stacked(width: int, text: str) -> None:
    assert told(width) == text


def test_rows_without_heads_have_labels() -> None:
    rows = (("cause", "operator, confidence 0.62"), ("next", "-"))

    assert told(24, (), rows) == "  cause  operator,\n         confidence 0.62\n  next   -"


def test_wide_letters_are_counted_as_two_columns() -> None:
    assert told(40, (), (("\u539f\u56e0", "a"), ("next", "b"))) == "  \u539f\u56e0  a\n  next  b"


def test_a_table_without_rows_has_no_lines() -> None:
    assert list(table_lines(COLUMNS, (), 80)) == []


BAD, GOOD = Tone.BAD, Tone.GOOD


def grid(columns: int) -> Grid:
    """Two stages; the first of two ranks in each cell is bad in the upper one."""
    cells = [
        tuple((GridMark(tone, f"{4 * n}"), GridMark(GOOD, f"{4 * n + 1}")) for n in range(columns))
        for tone in (BAD, GOOD)
    ]
    return Grid(
        tuple(f"dp{n}" for n in range(columns)),
        (("pp0", cells[0]), ("pp1", cells[1])),
        ((BAD, "bad before the reduction"), (GOOD, "clean")),
        "in a cell: tensor-parallel ranks",
    )


def grid_text(columns: int, width: int) -> str:
    return "\n".join(map(text_of, grid_lines(grid(columns), width)))


NAMED = """\
       dp0    dp1
  pp0  0x 1.  4x 5.
  pp1  0. 1.  4. 5.
  x bad before the reduction  . clean
  in a cell: tensor-parallel ranks"""

UNNAMED = """\
       dp0  dp1  dp2
  pp0  x.   x.   x.
  pp1  ..   ..   ..
  x bad before the reduction
  . clean
  in a cell:
  tensor-parallel ranks"""

CONTINUED = """\
       dp0  dp1  dp2
  pp0  x.   x.   x.
  pp1  ..   ..   ..

       dp3
  pp0  x.
  pp1  ..
  x bad before the reduction
  . clean
  in a cell:
  tensor-parallel ranks"""


def test_ranks_are_named_where_there_is_room() -> None:
    assert grid_text(2, 40) == NAMED


def test_a_narrow_grid_drops_names_before_columns() -> None:
    assert grid_text(3, 23) == UNNAMED


def test_a_grid_that_is_too_wide_continues_below() -> None:
    assert grid_text(4, 23) == CONTINUED


def test_every_mark_of_a_grid_has_its_own_tone() -> None:
    upper = list(grid_lines(grid(1), 40))[1]

    assert [span for span in upper if span.text.strip()] == [
        Span("  pp0", Tone.QUIET),
        Span("0x", BAD),
        Span(" 1.", GOOD),
    ]


BARS = """\
  layers.0  ########################  100
  layers.1  ############              1, NaN on rank 4
  layers.2                            NaN on rank 4
  layers.3                            0
  head      #                         0.01"""

NARROW = """\
  layers.0  ######  100
  layers.1  ###     1, NaN on
                    rank 4
  layers.2          NaN on rank
                    4
  layers.3          0
  head      #       0.01"""


def bars(width: int) -> str:
    numbers = (
        Bar("layers.0", 100.0, "100"),
        Bar("layers.1", 1.0, "1, NaN on rank 4", Tone.BAD),
        Bar("layers.2", None, "NaN on rank 4", Tone.BAD),
        Bar("layers.3", 0.0, "0"),
        Bar("head", 0.01, "0.01"),
    )
    return "\n".join(map(text_of, bar_lines(numbers, width, ASCII)))


def test_the_length_of_a_bar_follows_the_logarithm() -> None:
    assert bars(80) == BARS


def test_in_a_narrow_window_bars_shrink_before_text_is_folded() -> None:
    assert bars(32) == NARROW


def test_equal_numbers_have_equal_full_bars() -> None:
    lines = list(bar_lines([Bar("a", 3.0, ""), Bar("b", 3.0, "")], 80, ASCII))

    assert [text_of(line).count("#") for line in lines] == [24, 24]


def test_numbers_that_are_not_finite_have_no_length() -> None:
    lines = list(bar_lines([Bar("a", math.nan, "nan")], 80, ASCII))

    assert [text_of(line).count("#") for line in lines] == [0]
