"""Points and trees."""

from __future__ import annotations

from megatron_nanguard.report.blocks import Point, Tone
from megatron_nanguard.report.rendering.lines import ASCII, UNICODE, Span, text_of
from megatron_nanguard.report.rendering.points import point_lines, tree_lines

POINTS = (
    Point("operator, confidence 0.62", "1.", below=(Point("finite values in, nan out", "+", Tone.GOOD),)),
    Point("data", below=(Point("no mark here"),)),
)
TREE = (
    Point(
        "rank 5",
        tone=Tone.WORST,
        below=(
            Point("rank 4 by allreduce_", detail="(ranks 4, 5) first used", below=(Point("rank 6"),)),
            Point("rank 1 by recv_"),
        ),
    ),
    Point("rank 9"),
)


def test_points_are_indented_to_the_text_above_them() -> None:
    assert (
        "\n".join(map(text_of, point_lines(POINTS, 24)))
        == """\
  1. operator,
     confidence 0.62
     + finite values in,
       nan out
  data
    no mark here"""
    )


def test_only_the_mark_of_a_marked_point_has_its_tone() -> None:
    (line,) = point_lines((Point("text", "+", Tone.GOOD),), 24)

    assert line == (Span("  "), Span("+ ", Tone.GOOD), Span("text"))


def test_a_tree_is_drawn_with_guides_also_beside_folded_lines() -> None:
    assert (
        "\n".join(map(text_of, tree_lines(TREE, 30, ASCII)))
        == """\
  rank 5
  |- rank 4 by allreduce_
  |  |  (ranks 4, 5) first
  |  |  used
  |  `- rank 6
  `- rank 1 by recv_
  rank 9"""
    )


def test_a_detail_is_quieter_than_its_text_wherever_the_line_breaks() -> None:
    (_, first, *_) = tree_lines(TREE, 80, UNICODE)

    assert first == (
        Span("  \u251c\u2500 ", Tone.QUIET),
        Span("rank 4 by allreduce_"),
        Span(" (ranks 4, 5) first used", Tone.QUIET),
    )
