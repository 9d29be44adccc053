"""What to check and what to change, for the patterns that were recognised."""

from __future__ import annotations

from megatron_nanguard.diagnosis.advice import texts
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.report.blocks import Block, Point
from megatron_nanguard.report.opened_incident import OpenedIncident


def describe(opened: OpenedIncident) -> Block | None:
    """Three lines per pattern; one that this version has no text for is named only."""
    points = tuple(map(_point, opened.incident.advice))
    return Block(phrase("What helps"), points=points) if points else None


def _point(pattern: str) -> Point:
    text = texts().get(pattern)
    if text is None:
        return Point(pattern.replace("_", " "))
    return Point(
        text.what,
        below=(
            Point(phrase("check: {text}", text=text.check)),
            Point(phrase("change: {text}", text=text.change)),
        ),
    )
