"""A chart, ready for the page: data and layout in the form of plotly.js, and what is said of it in words.

Colours stand as names such as "origin" wherever plotly expects a colour; the page puts in those of the theme it shows.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Any

from megatron_nanguard.printable import printable

SHOWN_CHARACTERS = 46
PIECES = re.compile(r"[^\s.]*[\s.]*")
"""Words and parts of names, each with what follows it."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One chart.

    Attributes:
        name: its identifier in the page.
        title: its heading.
        caption: what is drawn and what it shows, in words; screen readers read it in place of the picture.
        traces: `data` of plotly.js.
        layout: `layout` of plotly.js.
        width: pixels below which the page scrolls it sideways.
    """

    name: str
    title: str
    caption: str
    traces: tuple[dict[str, Any], ...]
    layout: dict[str, Any]
    width: int = 0


def escape(text: str) -> str:
    """Text that plotly shows as it is: it would take `<b>` and `<a href>` for markup."""
    return html.escape(printable(text), quote=False)


def wrap(text: str, length: int) -> str:
    """Text in lines of a picture, broken at blanks, and at dots inside a long name."""
    shown = [""]
    for piece in PIECES.findall(text):
        if shown[-1] and len(shown[-1] + piece.rstrip()) > length:
            shown.append("")
        shown[-1] += piece
    return "<br>".join(escape(line.rstrip()) for line in shown)


def shorten(text: str, length: int = SHOWN_CHARACTERS) -> str:
    """The end of a long name: "...layers.3.self_attention.linear_qkv"."""
    return escape(text if len(text) <= length else "..." + text[3 - length :].lstrip("."))
