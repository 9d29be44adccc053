"""Arrows in right angles that leave room for words."""

from __future__ import annotations

from megatron_nanguard.report.html.pictures.arrows import Node, arrows, room_for_later, words_shift
from megatron_nanguard.report.html.pictures.propagation_graph import Hop
from megatron_nanguard.report.sections.propagation import Way

WAY = Way((1,), (0,), "a message", "a group")
NODES = [Node(0, 50), Node(200, 100), Node(200, 150), Node(400, 200), Node(400, 250)]


def hop(source: int, target: int, is_first: bool = True) -> Hop:
    return Hop(source, target, WAY, is_first)


def test_lines_of_two_sources_in_one_column_go_down_side_by_side() -> None:
    hops = [hop(0, 1), hop(0, 2), hop(1, 3), hop(2, 4)]

    (drawn,) = arrows(hops, NODES, 600)

    assert drawn["x"][10:] == [200, 214, 214, 400, None, 200, 221, 221, 400, None]
    assert drawn["y"][10:] == [100, 100, 200, 200, None, 150, 150, 250, 250, None]
    # words begin right of them, and close to their nodes where no line goes down
    assert words_shift(hops, NODES) == {0: 19, 200: 26, 400: 9}
    assert room_for_later(hops) == 0


def test_many_sources_share_the_room_of_a_column() -> None:
    nodes = [*(Node(0, 50 * lane) for lane in range(1, 22)), Node(200, 1100)]

    shift = words_shift([hop(lane, 21) for lane in range(21)], nodes)[0]

    # 42 pixels for 21 lines
    assert shift == 14 + 20 * 2 + 5


def test_what_came_later_goes_around_on_the_right() -> None:
    hops = [hop(0, 1), hop(3, 1, is_first=False), hop(4, 2, is_first=False)]

    first, later = arrows(hops, NODES, 600)

    assert first["line"].get("dash") is None
    assert later["line"]["dash"] == "dash"
    assert later["x"] == [400, 600, 600, 200, None, 400, 607, 607, 200, None]
    assert room_for_later(hops) == 14


def test_nothing_to_draw() -> None:
    assert list(arrows([], NODES, 600)) == []
