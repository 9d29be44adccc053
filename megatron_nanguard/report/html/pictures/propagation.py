"""The picture of the propagation graph: a node for ranks that became bad together, an arrow for each communication.

Positions are in pixels of the picture: x to the right, y downwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import FOLLOWED, joined, phrase
from megatron_nanguard.report.formatting import counted
from megatron_nanguard.report.html.pictures.arrows import Position, arrows, room_for_later, words_shift
from megatron_nanguard.report.html.pictures.axes import brief
from megatron_nanguard.report.html.pictures.figure import Figure, PlotlyDict, marks_at, shorten, wrap
from megatron_nanguard.report.html.pictures.propagation_graph import GraphNode, PropagationGraph, propagation_graph
from megatron_nanguard.report.lang import Translate

ROW_PIXELS: Final = 52
COLUMN_PIXELS: Final = (170, 250)
"""Smallest and largest width of a column."""
WORDS_PIXELS: Final = 260
"""Room for the words beside a node in the last column."""
PICTURE_PIXELS: Final = 820
"""Width of the picture without the names of the ranks, as a page has room for it."""
NAMES_PIXELS: Final = 110
WORDS_CHARACTERS: Final = 40
ORIGIN_CHARACTERS: Final = 84
LINE_PIXELS: Final = 15
SHOWN_STEPS: Final = 4

NODE_MARKS: Final = {"origin": ("square", 16), "bad": ("circle", 14), "infected": ("circle", 14)}

ORIGIN: Final = phrase(
    "The square is the origin; beside it are the operators from there to a gradient on the same rank."
)
NO_ORIGIN: Final = phrase("Where it began is not known: the first column was bad before the reduction.")
EDGES: Final = phrase(
    "A row is a rank, or several that the same message made bad, in the colour that the ranks have above. "
    "An arrow is a message that carried bad values; at its point are the name of the message and what "
    "used the values first. The columns count messages: there is no time axis, and nothing is to scale."
)
LATER_EDGES: Final = phrase(
    "A dashed arrow around the right side goes to ranks that were bad already. It made more gradients bad "
    "there, as the sum for tied embeddings does."
)
BEGAN, BAD_ALREADY = phrase("it began"), phrase("bad before")


def propagation_figure(incident: Incident, translate: Translate = str) -> Figure | None:
    """Draw how bad values spread from rank to rank; None where they did not spread, or where it is unknown.

    Args:
        incident: the merged incident.
        translate: puts a text into the language of the page.
    """
    drawn = propagation_graph(incident)
    if not any(node.transfer or node.steps for node in drawn.nodes):
        return None
    words = _node_words(drawn, translate)
    positions = list(_positions(drawn, words))
    right = max(position.x for position in positions) + WORDS_PIXELS
    if any(node.steps for node in drawn.nodes):
        right = max(right, 2 * WORDS_PIXELS)
    later = room_for_later(drawn.edges)
    more = ""
    if drawn.left_out:
        more = phrase("{transfers} of bad values left out.", transfers=counted(drawn.left_out, "further transfer"))
    return Figure(
        name="propagation",
        title=phrase("Propagation through ranks"),
        caption=joined(FOLLOWED, (ORIGIN if incident.origin else NO_ORIGIN, EDGES, LATER_EDGES if later else "", more)),
        traces=(*arrows(drawn.edges, positions, right), *_marks(drawn.nodes, positions, translate)),
        layout=_layout(drawn, positions, words, right + later),
        width=right + later + NAMES_PIXELS,
    )


def _positions(drawn: PropagationGraph, all_words: Sequence[str]) -> Iterator[Position]:
    """Yield the position of each node, with room for its words."""
    last = max((node.column for node in drawn.nodes), default=0)
    narrowest, widest = COLUMN_PIXELS
    pixels = max(narrowest, min(widest, (PICTURE_PIXELS - WORDS_PIXELS) // max(1, last)))
    y = 0
    for node, words in zip(drawn.nodes, all_words, strict=True):
        y += max(ROW_PIXELS, LINE_PIXELS * (words.count("<br>") + 2))
        yield Position(node.column * pixels, y)


def _marks(nodes: Sequence[GraphNode], positions: Sequence[Position], translate: Translate) -> Iterator[PlotlyDict]:
    for state, (symbol, size) in NODE_MARKS.items():
        chosen = [(node, position) for node, position in zip(nodes, positions, strict=True) if node.state == state]
        if chosen:
            words = [_hover(node, translate) for node, _ in chosen]
            marker = {"symbol": symbol, "size": size, "color": state}
            yield {**marks_at([position for _, position in chosen], words, marker), "showlegend": False}


def _layout(drawn: PropagationGraph, positions: Sequence[Position], all_words: Sequence[str], right: int) -> PlotlyDict:
    bottom = positions[-1].y + ROW_PIXELS // 2
    shifts = words_shift(drawn.edges, positions)
    return {
        "height": bottom + 50,
        "xaxis": {
            "range": [-20, right],
            "side": "top",
            **_columns(drawn, sorted({position.x for position in positions})),
        },
        "yaxis": {
            "range": [bottom, 0],
            "tickvals": [position.y for position in positions],
            "ticktext": [node.name for node in drawn.nodes],
            "showgrid": False,
            "showline": False,
        },
        "showlegend": any(not edge.is_first for edge in drawn.edges),
        "legend": {"orientation": "h", "x": 0, "y": 0, "yanchor": "top"},
        "annotations": [
            _annotation(words, position, shifts[position.x])
            for words, position in zip(all_words, positions, strict=True)
        ],
        "margin": {"t": 30, "b": 10},
    }


def _columns(drawn: PropagationGraph, places: Sequence[int]) -> PlotlyDict:
    """Make the x axis, whose ticks name the columns."""
    first = BEGAN if any(node.state == "origin" for node in drawn.nodes) else BAD_ALREADY
    later = [phrase("after {messages}", messages=counted(column, "message")) for column in range(1, len(places))]
    return {
        "tickvals": list(places),
        "ticktext": [first, *later],
        "tickfont": {"color": "muted"},
        "griddash": "dot",
        "showline": False,
    }


def _annotation(words: str, position: Position, shift: int) -> PlotlyDict:
    """Make the plotly annotation with the words of a node, `shift` pixels to its right and just above it."""
    return {
        "text": words,
        "font": {"color": "ink", "size": 11},
        "showarrow": False,
        "bgcolor": "raised",
        "borderpad": 1,
        "x": position.x,
        "y": position.y,
        "xanchor": "left",
        "yanchor": "bottom",
        "align": "left",
        "xshift": shift,
        "yshift": 4,
    }


def _node_words(drawn: PropagationGraph, translate: Translate) -> list[str]:
    """Write the words of each node: its communication, the first use of the bad values, and later communications."""
    all_words = [
        (_origin_words if node.state == "origin" else _infected_words)(node, translate) for node in drawn.nodes
    ]
    for edge in drawn.edges:
        if not edge.is_first:
            also = phrase(
                "also {by}: {gradients}", by=edge.transfer.by, gradients=", ".join(map(brief, edge.transfer.gradients))
            )
            all_words[edge.target] += f"<br>{wrap(translate(also), WORDS_CHARACTERS)}"
    return all_words


def _infected_words(node: GraphNode, translate: Translate) -> str:
    parts = (translate(node.transfer.by) if node.transfer else "", brief(translate(node.words)))
    return "<br>".join(wrap(part, WORDS_CHARACTERS) for part in parts if part)


def _origin_words(node: GraphNode, translate: Translate) -> str:
    """Name the origin and the operators from there to a gradient on its rank; leave out the middle of a long list."""
    words = wrap(brief(translate(node.words)), ORIGIN_CHARACTERS)
    if not node.steps:
        return words
    middle = len(node.steps) - SHOWN_STEPS
    more = (phrase("... {count} more", count=middle),) if middle > 0 else ()
    shown = (*node.steps[: SHOWN_STEPS - 1], *more, *node.steps[SHOWN_STEPS - 1 :][-1:])
    then = phrase("then {steps}", steps=", ".join(brief(translate(step)) for step in shown))
    return f"{words}<br>{wrap(translate(then), ORIGIN_CHARACTERS)}"


def _hover(node: GraphNode, translate: Translate) -> str:
    lines = [node.name, node.words]
    if node.transfer:
        lines += [node.transfer.by, node.transfer.call, node.transfer.group]
    return "<br>".join(shorten(translate(line), 100) for line in lines if line)
