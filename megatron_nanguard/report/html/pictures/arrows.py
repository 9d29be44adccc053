"""Draw the arrows of the propagation graph with right angles, so that no arrow crosses the words of a node.

The arrow that first made a node bad leaves its source to the right, goes down, and then right to the node. Words are
right of the downward lines and above the lines to the right. An arrow to a node that was bad already goes around the
right side of the picture.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from megatron_nanguard.records.phrase import Phrase, phrase
from megatron_nanguard.report.html.pictures.figure import PlotlyDict
from megatron_nanguard.report.html.pictures.propagation_graph import GraphEdge

STUB_PIXELS: Final = 14
LINES_PIXELS: Final = 42
"""Room for the downward lines in one column."""
PITCH_PIXELS: Final = 7
POINT_PIXELS: Final = 8
"""Distance between the point of an arrow and the middle of its node."""


class Position(NamedTuple):
    """Where a node is drawn, in pixels."""

    x: int
    y: int


def words_shift(edges: Sequence[GraphEdge], positions: Sequence[Position]) -> dict[int, int]:
    """Map the x of each column to the distance in pixels between its nodes and their words."""
    down = _downward(edges, positions)
    shifts = {position.x: 9 for position in positions}
    for source, x in down.items():
        shifts[positions[source].x] = max(shifts[positions[source].x], x - positions[source].x + 5)
    return shifts


def room_for_later(edges: Sequence[GraphEdge]) -> int:
    """Return how many pixels the arrows need that go around the right side of the picture."""
    return PITCH_PIXELS * sum(not edge.is_first for edge in edges)


def arrows(edges: Sequence[GraphEdge], positions: Sequence[Position], right: int) -> Iterator[PlotlyDict]:
    """Draw the arrows of each kind as one trace.

    Args:
        edges: the edges to draw.
        positions: where the nodes are.
        right: where the words of all nodes end.
    """
    down = _downward(edges, positions)
    first = [_line(positions, edge, down[edge.source]) for edge in edges if edge.is_first]
    later = [edge for edge in edges if not edge.is_first]
    around = [_line(positions, edge, right + PITCH_PIXELS * index) for index, edge in enumerate(later)]
    if first:
        yield _trace(first, phrase("made the ranks bad"), {"color": "edge", "width": 1.5})
    if around:
        yield _trace(
            around, phrase("reached ranks that were bad already"), {"color": "edge", "width": 1.2, "dash": "dash"}
        )


def _downward(edges: Sequence[GraphEdge], positions: Sequence[Position]) -> dict[int, int]:
    """Map each source node to the x of its downward line; the lines of one column are side by side."""
    columns: dict[int, list[int]] = defaultdict(list)
    for source in sorted({edge.source for edge in edges if edge.is_first}):
        columns[positions[source].x].append(source)
    return {
        source: x + STUB_PIXELS + index * min(PITCH_PIXELS, LINES_PIXELS // len(sources))
        for x, sources in columns.items()
        for index, source in enumerate(sources)
    }


def _line(positions: Sequence[Position], edge: GraphEdge, turn: int) -> tuple[list[int], list[int]]:
    source, target = positions[edge.source], positions[edge.target]
    return [source.x, turn, turn, target.x], [source.y, source.y, target.y, target.y]


def _trace(drawn: Sequence[tuple[list[int], list[int]]], name: Phrase, line: PlotlyDict) -> PlotlyDict:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [x for xs, _ in drawn for x in (*xs, None)],
        "y": [y for _, ys in drawn for y in (*ys, None)],
        "line": {**line, "backoff": [pixels for _ in drawn for pixels in (0, 0, 0, POINT_PIXELS, 0)]},
        "marker": {
            "symbol": "arrow",
            "angleref": "previous",
            "standoff": [pixels for _ in drawn for pixels in (0, 0, 0, POINT_PIXELS, 0)],
            "size": [pixels for _ in drawn for pixels in (0, 0, 0, 12, 0)],
            "color": line["color"],
            "opacity": 1,
        },
        "hoverinfo": "skip",
        "cliponaxis": False,
    }
