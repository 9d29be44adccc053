"""The pages of documentation, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    ROOT / "README.zh-CN.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "patches" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
MARKS = {"needs-hardware", "needs-trainer", "needs-network"}
"""What a block of commands may lack here; only its flags are checked then."""

_FENCE = re.compile(r"^```(\w*) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: relative to the project.
        language: first word after the fence.
        marks: the other words.
    """

    page: str
    language: str
    marks: frozenset[str]
    text: str

    @property
    def can_run(self) -> bool:
        """Whether the tests run it."""
        return self.language == "bash" and not self.marks & MARKS

    @property
    def exit_code(self) -> int:
        """What it ends with, by its mark `exits-N`."""
        return next((int(mark.removeprefix("exits-")) for mark in self.marks if mark.startswith("exits-")), 0)

    @property
    def commands(self) -> Iterator[list[str]]:
        """Its commands as words."""
        lexer = shlex.shlex(self.text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                if command:
                    yield command
                command = []
            else:
                command.append(word)


def blocks() -> list[Block]:
    """All fenced blocks of all pages."""
    return [
        Block(str(page.relative_to(ROOT)), language, frozenset(marks.split()), text)
        for page in PAGES
        for language, marks, text in _FENCE.findall(page.read_text(encoding="utf-8"))
    ]


def without_blocks(page: Path) -> str:
    """The text of a page outside of fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))
