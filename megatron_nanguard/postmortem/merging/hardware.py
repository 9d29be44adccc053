"""The devices of a run, equal ones counted, and which of them the accused ranks computed on."""

from __future__ import annotations

from collections import Counter
from typing import Final

from megatron_nanguard.records.device import RankDevice
from megatron_nanguard.records.incident import DeviceCount
from megatron_nanguard.records.postmortem import Postmortem, RankSets

LISTED: Final = 512
"""Accused ranks whose device is told; a fault of more than these is none of a device."""


class DeviceMerger:
    """Collects devices rank by rank."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._of_rank: dict[int, RankDevice] = {}
        self._hosts: set[str] = set()

    def add(self, postmortem: Postmortem) -> None:
        """Take one rank."""
        rank, device, health = postmortem.coordinates.rank, postmortem.device, postmortem.health
        self._counts[device.backend, device.name, device.overflow_mode] += 1
        self._hosts.add(postmortem.host)
        name = "" if device.index is None else f"{device.backend}:{device.index}"
        self._of_rank[rank] = RankDevice(rank, postmortem.host, health.device if health and name else name)

    @property
    def num_hosts(self) -> int:
        """Hosts of the ranks that were read."""
        return len(self._hosts)

    def counted(self) -> tuple[DeviceCount, ...]:
        """The devices of the run."""
        return tuple(DeviceCount(*device, count) for device, count in sorted(self._counts.items()))

    def accused(self, ranks: RankSets) -> tuple[RankDevice, ...]:
        """Where the ranks computed that were bad before the reduction, or only after it where none was."""
        candidates = ranks.bad_before or ranks.bad_after_only
        return tuple(self._of_rank[rank] for rank in candidates if rank in self._of_rank)[:LISTED]
