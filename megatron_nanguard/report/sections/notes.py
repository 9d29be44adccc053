"""What else a reader should know, and what is not known."""

from __future__ import annotations

from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.opened_incident import OpenedIncident

SATURATION = phrase(
    "devices in saturation mode turn overflow into the largest number: every check for NaN and Inf is blind there; "
    "set INF_NAN_MODE_ENABLE=1 before the start"
)


def describe(opened: OpenedIncident) -> Block | None:
    """Notes of the ranks and of the merge; a replay that was not done says why."""
    incident = opened.incident
    notes = list(incident.notes)
    if any(device.overflow_mode == "saturation" for device in incident.devices):
        notes.append(SATURATION)
    return Block(phrase("Notes"), notes=tuple(notes)) if notes else None
