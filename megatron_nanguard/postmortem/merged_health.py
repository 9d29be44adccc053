"""Which ranks' hardware a merged incident tells of: ten thousand that are well need no line each."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.records.health import DeviceHealth
from megatron_nanguard.records.postmortem import Postmortem

LISTED: Final = 64
"""Ranks that are kept for one reason."""
PEERS: Final = 2
"""Healthy ranks that are kept to compare with."""


class HealthMerger:
    """Keeps ranks with something new, ranks that may be where it began, and a few healthy ones."""

    def __init__(self) -> None:
        self._lost_data: list[DeviceHealth] = []
        self._tried: list[DeviceHealth] = []
        self._bad: list[DeviceHealth] = []
        self._with_news: list[DeviceHealth] = []
        self._with_notes: list[DeviceHealth] = []
        self._peers: list[DeviceHealth] = []

    def add(self, postmortem: Postmortem, fate: str) -> None:
        """Take one rank in.

        Args:
            fate: what happened to it: "bad_before", "bad_after_only" or "clean".
        """
        health = postmortem.health
        if health is None or not (health.readings or health.differences or health.problems):
            return
        if health.has_lost_data:
            _keep(self._lost_data, health)
        elif postmortem.arbitrations:
            _keep(self._tried, health)
        elif fate == "bad_before":
            _keep(self._bad, health)
        elif health.has_news:
            _keep(self._with_news, health)
        elif health.differences:
            _keep(self._with_notes, health)
        elif health.readings:
            _keep(self._peers, health, PEERS)

    def merged(self) -> tuple[DeviceHealth, ...]:
        """All that was kept, by rank; the verdict tells later which of them matter."""
        kept = (*self._lost_data, *self._tried, *self._bad, *self._with_news, *self._with_notes, *self._peers)
        return tuple(sorted(kept, key=lambda health: health.rank))


def _keep(kept: list[DeviceHealth], health: DeviceHealth, most: int = LISTED) -> None:
    if len(kept) < most:
        kept.append(health)
