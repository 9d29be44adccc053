"""The templates of all phrases in the code, found by the calls of `phrase`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import megatron_nanguard
from megatron_nanguard.records.trace import Phase

PACKAGE = Path(megatron_nanguard.__file__).parent
MADE_BY = {"phrase": 0, "Phrase": 1}
"""The index of the template among the arguments."""
IN_PAGE = re.compile(r"""phrase\((["'])((?:(?!\1).)*)\1""")


def templates() -> set[str]:
    """All templates; for one that is not a literal, its place in the code."""
    found = set(get_args(Phase))  # a phase is its own template
    for file in PACKAGE.rglob("*.py"):
        found.update(_literal(call, file) for call in _calls(file))
    for file in PACKAGE.rglob("*.j2"):
        found.update(words for _, words in IN_PAGE.findall(file.read_text(encoding="utf-8")))
    return found


def _calls(file: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        is_named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if is_named and len(node.args) > MADE_BY.get(node.func.id, len(node.args)):
            yield node


def _literal(call: ast.Call, file: Path) -> str:
    assert isinstance(call.func, ast.Name)
    template = call.args[MADE_BY[call.func.id]]
    is_literal = isinstance(template, ast.Constant) and isinstance(template.value, str)
    return str(template.value) if is_literal else f"{file.name}:{call.lineno}: {ast.unparse(template)}"
