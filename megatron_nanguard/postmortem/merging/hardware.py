"""Count the devices of a run by model, and choose the hardware readings that a merged incident keeps."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain
from typing import Final

from megatron_nanguard.records.incident import DeviceCount
from megatron_nanguard.records.machine.device import RankDevice
from megatron_nanguard.records.machine.health import DeviceHealth
from megatron_nanguard.records.postmortem import Postmortem, RankSets

LISTED_DEVICES: Final = 512
"""Failing ranks whose device is listed; if more ranks fail, no single device is at fault."""
LISTED_PER_REASON: Final = 64
"""Ranks whose hardware is kept for one reason."""
HEALTHY_PEERS: Final = 2
"""Healthy ranks whose hardware is kept for comparison."""


class DeviceMerger:
    """Collects the devices of all ranks."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._of_rank: dict[int, RankDevice] = {}

    def add(self, postmortem: Postmortem) -> None:
        """Add the device of one rank."""
        rank, device, health = postmortem.coordinates.rank, postmortem.device, postmortem.health
        self._counts[device.backend, device.name, device.overflow_mode] += 1
        name = "" if device.index is None else f"{device.backend}:{device.index}"
        self._of_rank[rank] = RankDevice(rank, postmortem.host, health.device if health and name else name)

    @property
    def num_hosts(self) -> int:
        """Number of different hosts."""
        return len({device.host for device in self._of_rank.values()})

    def counted(self) -> tuple[DeviceCount, ...]:
        """Return each model of device with the number of ranks on it."""
        return tuple(DeviceCount(*device, count) for device, count in sorted(self._counts.items()))

    def of_failing_ranks(self, ranks: RankSets) -> tuple[RankDevice, ...]:
        """Return the devices of the ranks that were bad before the reduction; if none was, of those bad after it."""
        failing = ranks.bad_before or ranks.bad_after_only
        return tuple(self._of_rank[rank] for rank in failing if rank in self._of_rank)[:LISTED_DEVICES]


class HealthMerger:
    """Selects ranks whose hardware the incident lists: suspects, ranks with changes, and a few healthy ones."""

    def __init__(self) -> None:
        self._kept: dict[str, list[DeviceHealth]] = defaultdict(list)

    def add(self, postmortem: Postmortem, set_name: str) -> None:
        """Add the hardware of one rank to the list of the first reason to keep it, as long as this list has room.

        Args:
            set_name: name of the set in `RankSets` that the rank is in.
        """
        health = postmortem.health
        reason = None if health is None else _why_kept(health, bool(postmortem.arbitrations), set_name)
        most = HEALTHY_PEERS if reason == "peer" else LISTED_PER_REASON
        if health is not None and reason is not None and len(self._kept[reason]) < most:
            self._kept[reason].append(health)

    def merged(self) -> tuple[DeviceHealth, ...]:
        """Return the selected hardware, sorted by rank; the rules of the diagnosis decide which of it matters."""
        return tuple(sorted(chain.from_iterable(self._kept.values()), key=lambda health: health.rank))


def _why_kept(health: DeviceHealth, is_tried: bool, set_name: str) -> str | None:
    """The first reason to keep the hardware of a rank; None for hardware that reported nothing."""
    reasons = {
        "lost data": health.has_lost_data,
        "tried": is_tried,
        "bad": set_name == "bad_before",
        "news": health.has_news,
        "notes": bool(health.differences),
        "peer": bool(health.readings),
    }
    reports = health.readings or health.differences or health.problems
    return next((reason for reason, holds in reasons.items() if holds), None) if reports else None
