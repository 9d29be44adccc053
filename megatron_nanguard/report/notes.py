"""What else a reader should know, and what is not known."""

from __future__ import annotations

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.report.blocks import Block

SATURATION = (
    "devices in saturation mode turn overflow into the largest number: every check for NaN and Inf is blind there; "
    "set INF_NAN_MODE_ENABLE=1 before the start"
)


def describe(incident: Incident) -> Block | None:
    """Notes of the ranks and of the merge; a replay that was not done says why."""
    notes = list(incident.notes)
    if any(device.overflow_mode == "saturation" for device in incident.devices):
        notes.append(SATURATION)
    if not incident.origin and incident.replay.why_not:
        notes.append(f"the origin was not looked for: {incident.replay.why_not}")
    return Block("Notes", notes=tuple(notes)) if notes else None
