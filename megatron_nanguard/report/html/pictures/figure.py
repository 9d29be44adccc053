"""A chart for the page: data and layout in the form of plotly.js, and a caption.

Wherever plotly expects a colour, the chart has a name such as "origin"; the page puts the colour of its theme
there.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from megatron_nanguard.printable import printable

SHOWN_CHARACTERS: Final = 46
PIECES: Final = re.compile(r"[^\s.]*[\s.]*")
"""Words, and the parts of dotted names, each with the blank or dot behind it."""

PlotlyDict = dict[str, Any]
"""A part of a chart in the form of plotly.js, such as a trace or an axis."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One chart.

    Attributes:
        name: its identifier in the page.
        title: its heading.
        caption: what is drawn and how to read it; screen readers read it in place of the chart.
        traces: `data` of plotly.js.
        layout: `layout` of plotly.js.
        width: smallest width in pixels; in a narrower window the page scrolls the chart sideways.
    """

    name: str
    title: str
    caption: str
    traces: tuple[PlotlyDict, ...]
    layout: PlotlyDict
    width: int = 0


def marks_at(places: Sequence[tuple[float, float]], words: Sequence[str], marker: PlotlyDict) -> PlotlyDict:
    """Make a trace of equal marks.

    Args:
        places: x and y of each mark.
        words: the tooltip of each mark, escaped.
        marker: symbol, size and colour of the marks.
    """
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "marker": marker,
        "cliponaxis": False,
        "customdata": list(words),
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def escape(text: str) -> str:
    """Escape a text for plotly, which takes `<b>` and `<a href>` for markup."""
    return html.escape(printable(text), quote=False)


def wrap(text: str, length: int) -> str:
    """Escape a text and break it into lines, at blanks and at the dots of long names."""
    shown = [""]
    for piece in PIECES.findall(text):
        if shown[-1] and len(shown[-1] + piece.rstrip()) > length:
            shown.append("")
        shown[-1] += piece
    return "<br>".join(escape(line.rstrip()) for line in shown)


def shorten(text: str, length: int = SHOWN_CHARACTERS) -> str:
    """Escape a text and keep only the end of a long one: "...layers.3.self_attention.linear_qkv"."""
    return escape(text if len(text) <= length else "..." + text[3 - length :].lstrip("."))
