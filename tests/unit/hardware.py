"""What the hardware under a rank says of itself, for tests of what is made of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from megatron_nanguard.records.machine.health import DeviceHealth, HealthDifference, HealthReading

READING = HealthReading(
    "nvml",
    "device",
    {"ECC errors, uncorrected, volatile": 0, "ECC errors, corrected, volatile": 4},
    {"temperature": "61 C", "clocks limited by": "nothing"},
)
LOST_DATA = HealthDifference("device", "ECC errors, uncorrected, volatile", "0", "2", "uncorrectable")
CORRECTED = HealthDifference("device", "ECC errors, corrected, volatile", "4", "9", "corrected")
SLOW = HealthDifference("device", "clocks limited by", "nothing", "power brake", "throttle")
LINK = HealthDifference("device", "NVLink CRC errors, flits", "0", "7", "link")
NOTE = HealthDifference("device", "row remap pending", "no", "yes", "info")
HOST_LOST_DATA = HealthDifference("host", "memory errors, uncorrectable", "0", "1", "uncorrectable")


def health(rank: int, *differences: HealthDifference, **changes: Any) -> DeviceHealth:
    """A GPU that was read, with nothing new unless a test says so."""
    record = DeviceHealth(
        rank=rank,
        host="node1",
        device=f"cuda:{rank}, GPU-{rank}",
        since="2026-01-01T12:00:00Z",
        taken="2026-01-01T13:00:00Z",
        differences=differences,
        readings=(READING,),
    )
    return replace(record, **changes)
