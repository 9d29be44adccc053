"""What tells of the hardware: a vendor's tool, or the kernel."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from megatron_nanguard.records.health import HealthReading


class SourceAnswer(NamedTuple):
    """The answer of a source.

    Attributes:
        readings: what it told.
        problem: why it told nothing, or not everything; empty when it did.
    """

    readings: tuple[HealthReading, ...] = ()
    problem: str = ""


class Source(Protocol):
    """One source, asked again at each look; it may hang, and is called in a thread of its own."""

    @property
    def name(self) -> str:
        """How it is named when it hangs."""

    def read(self) -> SourceAnswer:
        """What it tells now."""
