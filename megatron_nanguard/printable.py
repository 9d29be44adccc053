r"""What comes from a file, fit to be printed: no character of it may steer the terminal or turn the line around.

"mlp\x1b[2J" (an escape sequence that clears the screen) -> "mlp\\x1b[2J", five visible characters in its place
"""

from __future__ import annotations

import re
from typing import Final

_STEERING: Final = (
    "\x00-\x09\x0b-\x1f\x7f-\x9f"  # C0 but the newline, DEL and C1: escape sequences begin with one of them
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates of writing direction
    "\u2028\u2029"  # line and paragraph separator
    "\ud800-\udfff"  # lone surrogates, which stand for bytes of a file name and have no UTF-8
)
_IN_A_LINE: Final = re.compile(f"[\n{_STEERING}]")
_IN_A_TEXT: Final = re.compile(f"[{_STEERING}]")


def printable(line: str) -> str:
    r"""Spell out what would steer a terminal; a newline becomes the two characters `\n`."""
    return _IN_A_LINE.sub(_spelled, line)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stays one."""
    return _IN_A_TEXT.sub(_spelled, text)


def printable_json(text: str) -> str:
    """The same for a text in JSON, which keeps its meaning."""
    return _IN_A_TEXT.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def spelled_for(text: str, encoding: str | None) -> str:
    """Spell out what the encoding of an output lacks; None stands for UTF-8."""
    name = encoding or "utf-8"
    return text.encode(name, "backslashreplace").decode(name)


def _spelled(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
