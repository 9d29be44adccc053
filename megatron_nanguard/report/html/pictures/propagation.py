"""The propagation graph: one lane per rank, arrows for the messages that carried the fault from lane to lane.

Positions are pixels of the picture: x to the right, y downwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import FOLLOWED, joined, phrase
from megatron_nanguard.report.formatting import counted
from megatron_nanguard.report.html.pictures.arrows import Node, arrows, room_for_later, words_shift
from megatron_nanguard.report.html.pictures.axes import brief
from megatron_nanguard.report.html.pictures.figure import Figure, lines, short
from megatron_nanguard.report.html.pictures.propagation_graph import Lane, Lanes, lanes_of
from megatron_nanguard.report.lang import Tell

LANE_PIXELS: Final = 52
COLUMN_PIXELS: Final = (170, 250)
"""Narrowest and widest column."""
WORDS_PIXELS: Final = 260
"""Room for the words beside a node of the last column."""
PICTURE_PIXELS: Final = 820
"""Width that a page has room for beside the names of the lanes."""
NAMES_PIXELS: Final = 110
WORDS_CHARACTERS: Final = 40
ORIGIN_CHARACTERS: Final = 84
LINE_PIXELS: Final = 15
SHOWN_STEPS: Final = 4

NODES: Final = {"origin": ("square", 16), "bad": ("circle", 14), "infected": ("circle", 14)}

TITLE: Final = phrase("Propagation through ranks")
ORIGIN: Final = phrase("The square is the origin, with its way to a gradient on its own rank beside it.")
NO_ORIGIN: Final = phrase("Where it began is not known: the first column was bad before the reduction.")
HOPS: Final = phrase(
    "A lane is a rank, or several that the same message made bad, in the colour that the ranks have above; an arrow is "
    "a message that carried bad values, named at its point with what used them first. The columns count messages: "
    "there is no time axis, and nothing is to scale."
)
LATER_HOPS: Final = phrase(
    "A dashed arrow, around the right side, goes to ranks that were bad already and made further gradients bad there, "
    "as the sum for tied embeddings does."
)
FURTHER: Final = phrase("{ways} of infection left out.")
BEGAN, BAD_ALREADY = phrase("it began"), phrase("bad before")
LATER: Final = phrase("after {messages}")
ALSO: Final = phrase("also {by}: {gradients}")
ON_THE_RANK: Final = phrase("then {steps}")
MORE_STEPS: Final = phrase("... {count} more")


def propagation_figure(incident: Incident, tell: Tell = str) -> Figure | None:
    """Draw how the fault went from rank to rank; None where it went nowhere or nothing is known of it.

    Args:
        incident: the merged incident.
        tell: puts a text into the language of the page.
    """
    drawn = lanes_of(incident)
    if not any(lane.way or lane.steps for lane in drawn.lanes):
        return None
    words = _all_words(drawn, tell)
    nodes = list(_nodes(drawn, words))
    right = max(node.x for node in nodes) + WORDS_PIXELS
    if any(lane.steps for lane in drawn.lanes):
        right = max(right, 2 * WORDS_PIXELS)
    later = room_for_later(drawn.hops)
    more = FURTHER.format(ways=counted(drawn.left_out, "further way")) if drawn.left_out else ""
    return Figure(
        name="propagation",
        title=TITLE,
        caption=joined(FOLLOWED, (ORIGIN if incident.origin else NO_ORIGIN, HOPS, LATER_HOPS if later else "", more)),
        traces=(*arrows(drawn.hops, nodes, right), *_marks(drawn.lanes, nodes, tell)),
        layout=_layout(drawn, nodes, words, right + later),
        width=right + later + NAMES_PIXELS,
    )


def _nodes(drawn: Lanes, all_words: Sequence[str]) -> Iterator[Node]:
    """A lane is as high as its words."""
    last = max((lane.column for lane in drawn.lanes), default=0)
    narrowest, widest = COLUMN_PIXELS
    pixels = max(narrowest, min(widest, (PICTURE_PIXELS - WORDS_PIXELS) // max(1, last)))
    y = 0
    for lane, words in zip(drawn.lanes, all_words, strict=True):
        y += max(LANE_PIXELS, LINE_PIXELS * (words.count("<br>") + 2))
        yield Node(lane.column * pixels, y)


def _marks(lanes: Sequence[Lane], nodes: Sequence[Node], tell: Tell) -> Iterator[dict[str, Any]]:
    for state, (symbol, size) in NODES.items():
        chosen = [(lane, node) for lane, node in zip(lanes, nodes, strict=True) if lane.state == state]
        if chosen:
            yield {
                "type": "scatter",
                "mode": "markers",
                "x": [node.x for _, node in chosen],
                "y": [node.y for _, node in chosen],
                "marker": {"symbol": symbol, "size": size, "color": state},
                "showlegend": False,
                "cliponaxis": False,
                "customdata": [_hover(lane, tell) for lane, _ in chosen],
                "hovertemplate": "%{customdata}<extra></extra>",
            }


def _layout(drawn: Lanes, nodes: Sequence[Node], all_words: Sequence[str], right: int) -> dict[str, Any]:
    bottom = nodes[-1].y + LANE_PIXELS // 2
    shifts = words_shift(drawn.hops, nodes)
    return {
        "height": bottom + 50,
        "xaxis": {"range": [-20, right], "side": "top", **_columns(drawn, sorted({node.x for node in nodes}))},
        "yaxis": {
            "range": [bottom, 0],
            "tickvals": [node.y for node in nodes],
            "ticktext": [lane.name for lane in drawn.lanes],
            "showgrid": False,
            "showline": False,
        },
        "showlegend": any(not hop.is_first for hop in drawn.hops),
        "legend": {"orientation": "h", "x": 0, "y": 0, "yanchor": "top"},
        "annotations": [_said(words, node, shifts[node.x]) for words, node in zip(all_words, nodes, strict=True)],
        "margin": {"t": 30, "b": 10},
    }


def _columns(drawn: Lanes, places: Sequence[int]) -> dict[str, Any]:
    """The axis says what a column is."""
    first = BEGAN if any(lane.state == "origin" for lane in drawn.lanes) else BAD_ALREADY
    later = [LATER.format(messages=counted(column, "message")) for column in range(1, len(places))]
    return {
        "tickvals": list(places),
        "ticktext": [first, *later],
        "tickfont": {"color": "muted"},
        "griddash": "dot",
        "showline": False,
    }


def _said(words: str, node: Node, shift: int) -> dict[str, Any]:
    """Beside and above its node."""
    place = {"xanchor": "left", "yanchor": "bottom", "align": "left", "xshift": shift, "yshift": 4}
    return {**_text(words, "ink"), **place, "x": node.x, "y": node.y}


def _text(words: str, colour: str) -> dict[str, Any]:
    font = {"color": colour, "size": 11}
    return {"text": words, "showarrow": False, "bgcolor": "raised", "borderpad": 1, "font": font}


def _all_words(drawn: Lanes, tell: Tell) -> list[str]:
    """What stands beside each lane: how the bad values came, where they were used, and what came later."""
    told = [(_origin_words if lane.state == "origin" else _infected_words)(lane, tell) for lane in drawn.lanes]
    for hop in drawn.hops:
        if not hop.is_first:
            also = ALSO.format(by=hop.way.by, gradients=", ".join(map(brief, hop.way.gradients)))
            told[hop.target] += f"<br>{lines(tell(also), WORDS_CHARACTERS)}"
    return told


def _infected_words(lane: Lane, tell: Tell) -> str:
    parts = (tell(lane.way.by) if lane.way else "", brief(tell(lane.words)))
    return "<br>".join(lines(part, WORDS_CHARACTERS) for part in parts if part)


def _origin_words(lane: Lane, tell: Tell) -> str:
    """Where it began, and how it went on on the rank; the middle of a long way is left out."""
    words = lines(brief(tell(lane.words)), ORIGIN_CHARACTERS)
    if not lane.steps:
        return words
    middle = len(lane.steps) - SHOWN_STEPS
    more = (MORE_STEPS.format(count=middle),) if middle > 0 else ()
    shown = (*lane.steps[: SHOWN_STEPS - 1], *more, *lane.steps[SHOWN_STEPS - 1 :][-1:])
    then = ON_THE_RANK.format(steps=", ".join(brief(tell(step)) for step in shown))
    return f"{words}<br>{lines(tell(then), ORIGIN_CHARACTERS)}"


def _hover(lane: Lane, tell: Tell) -> str:
    told = [lane.name, lane.words]
    if lane.way:
        told += [lane.way.by, lane.way.call, lane.way.group]
    return "<br>".join(short(tell(line), 100) for line in told if line)
