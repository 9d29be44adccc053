"""The device of a rank: its backend and name, and whether an overflow becomes Inf or the largest number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OverflowMode = Literal["inf_nan", "saturation", "not_applicable", "unknown"]


@dataclass(frozen=True)
class DeviceFacts:
    """What one device says of itself.

    Attributes:
        backend: "cuda", "npu" or "cpu".
        index: device number on its host; null where there is one only.
        name: product name.
        overflow_mode: "inf_nan" follows IEEE; "saturation" turns overflow into the largest number, which makes every
            check blind; "not_applicable" where there is no choice; "unknown" when it could not be read.
        memory_total_bytes: device memory; null when unknown.
        details: further facts worth a line, such as driver and firmware.
    """

    backend: str
    index: int | None
    name: str
    overflow_mode: OverflowMode
    memory_total_bytes: int | None
    details: dict[str, str]


@dataclass(frozen=True)
class RankDevice:
    """Which device a rank computed on: a rank moves when a job starts again, a device stays.

    Attributes:
        rank: global rank.
        host: host name.
        device: its number on the host, with the vendor's name for it where that is known; empty where a host has one.
    """

    rank: int
    host: str
    device: str
