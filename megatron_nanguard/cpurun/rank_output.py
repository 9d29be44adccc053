"""Prints the output of the ranks line by line, with the rank in front.

[rank0]  iteration  1/ 3 | ... lm loss: 4.646446E+00 | ...
[rank5] Traceback (most recent call last):
"""

from __future__ import annotations

import collections
import os
import selectors
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import TextIO

TAIL_LINES = 25
_CHUNK_BYTES = 1 << 16


@dataclass
class _Pipe:
    rank: int
    target: TextIO
    rest: bytes = b""


class RankOutput:
    """The read ends of the ranks' pipes.

    Args:
        show: Ranks whose lines are printed; None for all. The last lines of every rank are kept.
    """

    def __init__(self, show: Collection[int] | None = None) -> None:
        self._show = show
        self._selector = selectors.DefaultSelector()
        self._tails: dict[int, collections.deque[str]] = {}

    def connect(self, rank: int) -> tuple[int, int]:
        """Make the pipes of one rank; returns the write ends for its stdout and stderr."""
        self._tails[rank] = collections.deque(maxlen=TAIL_LINES)
        return self._pipe(rank, sys.stdout), self._pipe(rank, sys.stderr)

    def _pipe(self, rank: int, target: TextIO) -> int:
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._selector.register(read_end, selectors.EVENT_READ, _Pipe(rank, target))
        return write_end

    @property
    def is_open(self) -> bool:
        """Whether any rank can still print."""
        return bool(self._selector.get_map())

    @property
    def read_ends(self) -> list[int]:
        """Descriptors that a forked rank inherits and closes."""
        return [key.fd for key in self._selector.get_map().values()]

    def pump(self, wait_seconds: float) -> None:
        """Print what the ranks have written.

        Args:
            wait_seconds: Longest wait when nothing has been written yet.
        """
        for key, _ in self._selector.select(wait_seconds):
            pipe: _Pipe = key.data
            data = os.read(key.fd, _CHUNK_BYTES)
            *lines, pipe.rest = (pipe.rest + data).split(b"\n")
            if not data:
                lines = [pipe.rest] if pipe.rest else []
                self._selector.unregister(key.fd)
                os.close(key.fd)
            for line in lines:
                self._emit(pipe, line)
            pipe.target.flush()

    def _emit(self, pipe: _Pipe, line: bytes) -> None:
        text = f"[rank{pipe.rank}] {line.decode(errors='replace')}\n"
        self._tails[pipe.rank].append(text)
        if self._show is None or pipe.rank in self._show:
            pipe.target.write(text)

    def tail(self, rank: int) -> list[str]:
        """Last lines of a rank, as printed."""
        return list(self._tails[rank])

    def close(self) -> None:
        """Close pipes that are still open, for example because a child of a rank holds the other end."""
        for descriptor in self.read_ends:
            self._selector.unregister(descriptor)
            os.close(descriptor)
        self._selector.close()
