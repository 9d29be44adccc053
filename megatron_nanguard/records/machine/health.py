"""Readings of the hardware at the start of a run and at an incident, and what changed in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["uncorrectable", "corrected", "throttle", "link", "info"]


@dataclass(frozen=True)
class HealthReading:
    """What one source reported at one moment.

    Attributes:
        source: "nvml", "npu-smi", "edac" or "kernel log".
        part: "device" for this rank's device, "host" for its host; a PCI address for a device of the host that could
            not be matched with any rank.
        counters: what only grows while the device is up, such as errors, by the source's own names; those at zero are
            left out where the file had to be small.
        states: everything else in words, such as temperature and driver.
    """

    source: str
    part: str
    counters: dict[str, int]
    states: dict[str, str]


@dataclass(frozen=True)
class HealthDifference:
    """Something that changed since the start of the run.

    Attributes:
        part: as in the readings; only "device" is this rank's own.
        what: the counter or state.
        before: its value at the start.
        now: its value at the incident.
        severity: "uncorrectable" for data that was lost, "corrected" for an error that was corrected, "throttle" for
            clocks that were lowered, "link" for errors between devices, "info" for everything else.
    """

    part: str
    what: str
    before: str
    now: str
    severity: Severity


@dataclass(frozen=True, kw_only=True)
class DeviceHealth:
    """The hardware under one rank.

    Attributes:
        rank: global rank.
        host: host name.
        device: how torch and the vendor's tools name the device.
        since: when it was looked at first, UTC, ISO 8601.
        taken: when it was looked at for this incident.
        differences: what changed since the start, worst first.
        readings: what the sources reported at the incident.
        problems: sources that reported nothing, and why.
    """

    rank: int
    host: str
    device: str
    since: str
    taken: str
    differences: tuple[HealthDifference, ...] = ()
    readings: tuple[HealthReading, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def has_lost_data(self) -> bool:
        """Whether device or host report an error that they could not correct."""
        return any(difference.severity == "uncorrectable" for difference in self.differences)

    @property
    def has_news(self) -> bool:
        """Whether something changed that is more than a note."""
        return any(difference.severity != "info" for difference in self.differences)
