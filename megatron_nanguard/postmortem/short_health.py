"""The hardware of a rank in fewer bytes: what changed outlasts what was read."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from megatron_nanguard.records.health import DeviceHealth

KEPT_CHANGES: Final = 8
READINGS_UP_TO: Final = 256
"""Lists shorter than this leave no room for readings."""


def without_zeros(health: DeviceHealth | None) -> DeviceHealth | None:
    """Leave out the errors that never happened."""
    if health is None:
        return None
    readings = (
        replace(reading, counters={name: count for name, count in reading.counters.items() if count})
        for reading in health.readings
    )
    return replace(health, readings=tuple(readings))


def cut_health(health: DeviceHealth | None, length: int) -> DeviceHealth | None:
    """Keep as many changes as there is room for, worst first; the readings, and silence, only while lists are long."""
    if health is None or length >= READINGS_UP_TO:
        return health
    if not (health.differences or health.problems):
        return None
    return replace(health, differences=health.differences[: max(length, KEPT_CHANGES)], readings=())
