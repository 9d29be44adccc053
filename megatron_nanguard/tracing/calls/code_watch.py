"""Follow calls of chosen Python functions without changing the functions.

A wrapper around a function changes what `torch.compile` guards on, and a compiled region that had inlined the function
would be compiled again, with other bits. Watching its code object changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Final

_TOOL: Final = "megatron_nanguard"
_TOOL_IDS: Final = (4, 3, 1, 2, 0, 5)
"""Those without a customary user first: 0 is for debuggers, 1 for coverage, 2 for profilers, 5 for optimizers."""


class CodeWatch:
    """Calls back when a watched code object starts, returns or raises, in the thread that runs it.

    It uses `sys.monitoring`, or `sys.setprofile` where that is missing (before Python 3.12) or has no free place. The
    latter watches the thread that enters `watching` only, and takes the place of another profiler of that thread.

    Args:
        started: gets the frame of a call that begins.
        returned: gets the frame and the result of a call that ends.
        raised: gets the frame of a call that ends by an exception.
    """

    def __init__(
        self,
        started: Callable[[FrameType], object],
        returned: Callable[[FrameType, object], object],
        raised: Callable[[FrameType], object],
    ) -> None:
        self._started, self._returned, self._raised = started, returned, raised
        self._codes: dict[int, CodeType] = {}  # By identity: equal code of two classes is not one code object.
        self._tool: int | None = None

    def add(self, code: CodeType) -> None:
        """Watch one more code object, from its next call on."""
        if id(code) not in self._codes:
            self._codes[id(code)] = code
            if self._tool is not None:
                self._set_events(code, watched=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch; a call that runs already is not reported."""
        self._tool = _take_tool()
        with self._profiling() if self._tool is None else self._monitoring(self._tool):
            yield

    @contextmanager
    def _monitoring(self, tool: int) -> Iterator[None]:
        events, register = sys.monitoring.events, sys.monitoring.register_callback
        callbacks: dict[int, Callable[..., object]] = {
            events.PY_START: self._start,
            events.PY_RETURN: self._return,
            events.PY_UNWIND: self._unwind,
        }
        try:
            for event, callback in callbacks.items():
                register(tool, event, callback)
            for code in self._codes.values():
                self._set_events(code, watched=True)
            sys.monitoring.set_events(tool, events.PY_UNWIND)  # Python cannot restrict this one to a code object.
            # A tool that had this place before may have disabled events, and Python does not forget that.
            sys.monitoring.restart_events()
            yield
        finally:
            sys.monitoring.set_events(tool, 0)
            for code in self._codes.values():
                self._set_events(code, watched=False)
            for event in callbacks:
                register(tool, event, None)
            sys.monitoring.free_tool_id(tool)
            self._tool = None

    def _set_events(self, code: CodeType, *, watched: bool) -> None:
        assert self._tool is not None
        events = sys.monitoring.events
        sys.monitoring.set_local_events(self._tool, code, events.PY_START | events.PY_RETURN if watched else 0)

    @contextmanager
    def _profiling(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(before)

    # The callbacks of `sys.monitoring` run in a frame above the one they are about.

    def _start(self, code: CodeType, offset: int) -> None:
        self._started(sys._getframe(1))

    def _return(self, code: CodeType, offset: int, result: object) -> None:
        self._returned(sys._getframe(1), result)

    def _unwind(self, code: CodeType, offset: int, error: BaseException) -> None:
        if id(code) in self._codes:
            self._raised(sys._getframe(1))

    def _profile(self, frame: FrameType, event: str, result: object) -> None:
        """The callback of `sys.setprofile`. It cannot tell a call that raises from one that returns None."""
        if id(frame.f_code) in self._codes:
            if event == "call":
                self._started(frame)
            elif event == "return":
                self._returned(frame, result)


def _take_tool() -> int | None:
    """Take a free place in `sys.monitoring`; None where there is none."""
    if not hasattr(sys, "monitoring"):
        return None
    for tool in _TOOL_IDS:
        if sys.monitoring.get_tool(tool) is None:
            sys.monitoring.use_tool_id(tool, _TOOL)
            return tool
    return None
