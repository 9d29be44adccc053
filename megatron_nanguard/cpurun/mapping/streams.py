"""Streams and events: the CPU runs everything in program order, so waiting has no effect."""

from __future__ import annotations

import itertools
import time
from types import ModuleType
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes
from megatron_nanguard.cpurun.mapping.device_arguments import current as current_device


def _no_wait(self: Any, *others: Any) -> None:
    """Return at once: what was launched before has run."""


class Event:
    """`torch.cuda.Event`: keeps the time at which it was recorded."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        self.recorded_at: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        self.recorded_at = time.perf_counter()

    wait = synchronize = _no_wait

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between two recorded events."""
        if self.recorded_at is None or end_event.recorded_at is None:
            raise RuntimeError("elapsed_time: both events must be recorded first")
        return (end_event.recorded_at - self.recorded_at) * 1e3


class Stream:
    """`torch.cuda.Stream`: an identity only, all work runs in program order."""

    _ids = itertools.count(1)

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        import torch

        self.priority = priority
        self.device_index = current_device.index
        self.device = torch.device("cuda", self.device_index)
        self.cuda_stream = self.stream_id = next(self._ids)
        self._entered: list[StreamContext] = []

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return (0, -1)

    wait_stream = wait_event = synchronize = _no_wait

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        self._entered.append(StreamContext(self))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._entered.pop().__exit__(*exc)


class _CurrentStream:
    stream: Stream
    default: Stream


_current = _CurrentStream()


class StreamContext:
    """`with torch.cuda.stream(s):` makes s current; None has no effect."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self.previous = _current.stream

    def __enter__(self) -> None:
        self.previous = _current.stream
        set_stream(self.stream)

    def __exit__(self, *exc: object) -> None:
        _current.stream = self.previous


def set_stream(stream: Stream | None) -> None:
    """Make a stream current; None has no effect, as in `torch.cuda.set_stream`."""
    if stream is not None:
        _current.stream = stream


def map_streams(changes: ChangedAttributes, torch: ModuleType) -> None:
    """Replace streams and events, which DDP overlap, MoE side streams, schedules and timers use."""
    _current.stream = _current.default = Stream()
    answers: dict[str, object] = {
        "Stream": Stream,
        "Event": Event,
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "set_stream": set_stream,
        "current_stream": lambda device=None: _current.stream,
        "default_stream": lambda device=None: _current.default,
        "synchronize": lambda device=None: None,
        "is_current_stream_capturing": lambda: False,
        "_sleep": lambda cycles: None,
    }
    changes.put_all(torch.cuda, answers)
