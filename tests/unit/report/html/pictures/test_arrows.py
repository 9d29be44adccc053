"""Arrows in right angles that leave room for words."""

from __future__ import annotations

from megatron_nanguard.report.html.pictures.arrows import Position, arrows, room_for_later, words_shift
from megatron_nanguard.report.html.pictures.propagation_graph import GraphEdge
from megatron_nanguard.report.sections.propagation import BadTransfer

TRANSFER = BadTransfer((1,), (0,), "a message", "a group")
POSITIONS = [Position(0, 50), Position(200, 100), Position(200, 150), Position(400, 200), Position(400, 250)]


def edge(source: int, target: int, is_first: bool = True) -> GraphEdge:
    return GraphEdge(source, target, TRANSFER, is_first)


def test_lines_of_two_sources_in_one_column_go_down_side_by_side() -> None:
    edges = [edge(0, 1), edge(0, 2), edge(1, 3), edge(2, 4)]

    (drawn,) = arrows(edges, POSITIONS, 600)

    assert drawn["x"][10:] == [200, 214, 214, 400, None, 200, 221, 221, 400, None]
    assert drawn["y"][10:] == [100, 100, 200, 200, None, 150, 150, 250, 250, None]
    # words begin right of them, and close to their positions where no line goes down
    assert words_shift(edges, POSITIONS) == {0: 19, 200: 26, 400: 9}
    assert room_for_later(edges) == 0


def test_many_sources_share_the_room_of_a_column() -> None:
    positions = [*(Position(0, 50 * node) for node in range(1, 22)), Position(200, 1100)]

    shift = words_shift([edge(node, 21) for node in range(21)], positions)[0]

    # 42 pixels for 21 lines
    assert shift == 14 + 20 * 2 + 5


def test_arrows_to_ranks_that_were_bad_already_go_around_on_the_right() -> None:
    edges = [edge(0, 1), edge(3, 1, is_first=False), edge(4, 2, is_first=False)]

    first, later = arrows(edges, POSITIONS, 600)

    assert first["line"].get("dash") is None
    assert later["line"]["dash"] == "dash"
    assert later["x"] == [400, 600, 600, 200, None, 400, 607, 607, 200, None]
    assert room_for_later(edges) == 14


def test_no_edges_give_no_arrows() -> None:
    assert list(arrows([], POSITIONS, 600)) == []
