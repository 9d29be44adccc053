"""What to check and what to change, for the patterns that were recognised."""

from __future__ import annotations

from megatron_nanguard.diagnosis.advice import texts
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.report.blocks import Block


def describe(incident: Incident) -> Block | None:
    """Three lines per pattern; one that this version has no text for is named only."""
    lines = []
    for pattern in incident.advice:
        text = texts().get(pattern)
        if text is None:
            lines.append(pattern.replace("_", " "))
            continue
        lines += [text.what, f"  check: {text.check}", f"  change: {text.change}"]
    return Block("What helps", notes=tuple(lines)) if lines else None
