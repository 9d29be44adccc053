"""Tables at several widths."""

from __future__ import annotations

import pytest

from megatron_nanguard.report.rendering.lines import text_of
from megatron_nanguard.report.rendering.tables import table_lines

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
