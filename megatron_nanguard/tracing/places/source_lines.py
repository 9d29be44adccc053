"""The source line that called an operator: that of the innermost frame outside of torch and of this package."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import torch

_NOT_USERS: Final = tuple(
    os.path.join(path, "") for path in (os.path.dirname(torch.__file__), Path(__file__).parents[2])
)
_DEEPEST: Final = 60
# Frames beyond these belong to the caller of the backward, not to an operator in it. Megatron calls the engine itself:
# megatron/core/pipeline_parallel/schedules.py, custom_backward.
_STARTS_BACKWARD: Final = ("_engine_run_backward", "custom_backward")


class SourceLine(NamedTuple):
    """A source line. Only its code object and number are kept; the text is made at the end of the pass."""

    code: CodeType
    number: int

    @property
    def function(self) -> str:
        """Name of the function, from Python 3.11 on with its class in front."""
        return str(getattr(self.code, "co_qualname", self.code.co_name)).rpartition("<locals>.")[2]

    def __str__(self) -> str:
        return f"{_short(self.code.co_filename)}:{self.number} in {self.function}"


class SourceLines:
    """Finds the user's line in the stack, and remembers which functions are the user's."""

    def __init__(self) -> None:
        self._known: dict[CodeType, bool] = {}

    def here(self) -> SourceLine | None:
        """Return the line that called the current operator; None in the autograd engine, or below very deep stacks."""
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_DEEPEST):
            if frame is None or frame.f_code.co_name in _STARTS_BACKWARD:
                return None
            is_users = self._known.get(frame.f_code)
            if is_users is None:
                is_users = self._known[frame.f_code] = _is_users(frame)
            if is_users:
                return SourceLine(frame.f_code, frame.f_lineno)
            frame = frame.f_back
        return None


def backward_line(node: Any) -> SourceLine | None:
    """First line of the Python backward that a node runs; None for other nodes, and for functions of torch itself."""
    backward = getattr(getattr(node, "_forward_cls", None), "backward", None)
    code = getattr(inspect.unwrap(backward), "__code__", None) if backward is not None else None
    return (
        None if code is None or code.co_filename.startswith(_NOT_USERS[:1]) else SourceLine(code, code.co_firstlineno)
    )


def _short(path: str) -> str:
    """Shorten a path to the part below the longest entry of `sys.path` that holds it.

    The files of an editable install lie below no entry: they keep the part from their package on. A file outside of any
    package keeps its whole path.
    """
    entries = (os.path.join(os.path.abspath(entry), "") for entry in sys.path)
    longest = max((entry for entry in entries if path.startswith(entry)), key=len, default="")
    return path.removeprefix(longest or _above_package(path))


def _above_package(path: str) -> str:
    folder = os.path.dirname(path)
    while len(folder) > 1 and os.path.exists(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(folder)
    return "" if folder == os.path.dirname(path) else os.path.join(folder, "")


def _is_users(frame: FrameType) -> bool:
    # The script that was started belongs to the user, wherever it lies.
    if frame.f_globals.get("__name__") == "__main__":
        return True
    return not frame.f_code.co_filename.startswith((*_NOT_USERS, "<frozen"))
