"""Which line of source issued an operator: that of the first frame outside of torch and of ourselves."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import torch

_OTHERS: Final = tuple(os.path.join(path, "") for path in (os.path.dirname(torch.__file__), Path(__file__).parents[2]))
_DEEPEST: Final = 60
# Beyond them stands whoever started the backward, which says nothing of an operator in it. Megatron calls the engine
# itself: megatron/core/pipeline_parallel/schedules.py, custom_backward.
_STARTS_BACKWARD: Final = ("_engine_run_backward", "custom_backward")


class SourceLine(NamedTuple):
    """A line of source, kept as it is found and put into words at the end."""

    code: CodeType
    number: int

    @property
    def function(self) -> str:
        """Name of the function, with its class where Python tells it (3.11)."""
        return str(getattr(self.code, "co_qualname", self.code.co_name)).rpartition("<locals>.")[2]

    def __str__(self) -> str:
        return f"{_short(self.code.co_filename)}:{self.number} in {self.function}"


class SourceLines:
    """Remembers per function whether its frames count."""

    def __init__(self) -> None:
        self._counts: dict[CodeType, bool] = {}

    def here(self) -> SourceLine | None:
        """The line that issued what runs now; None where the engine did, or when it is too deep to look for."""
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_DEEPEST):
            if frame is None or frame.f_code.co_name in _STARTS_BACKWARD:
                return None
            counts = self._counts.get(frame.f_code)
            if counts is None:
                counts = self._counts[frame.f_code] = _is_users(frame)
            if counts:
                return SourceLine(frame.f_code, frame.f_lineno)
            frame = frame.f_back
        return None


def backward_line(node: Any) -> SourceLine | None:
    """Where the backward of an autograd.Function is written; None for a node that runs none, or one of torch's own."""
    backward = getattr(getattr(node, "_forward_cls", None), "backward", None)
    code = getattr(inspect.unwrap(backward), "__code__", None) if backward is not None else None
    return None if code is None or code.co_filename.startswith(_OTHERS[:1]) else SourceLine(code, code.co_firstlineno)


def _short(path: str) -> str:
    """A file as it is imported: below the longest entry of the module path that holds it, else below its package.

    An editable install stands on no entry of the module path; a file of no package keeps its whole path.
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
    # The script that was started is the user's wherever it lies.
    if frame.f_globals.get("__name__") == "__main__":
        return True
    return not frame.f_code.co_filename.startswith((*_OTHERS, "<frozen"))
