"""The hardware under this rank, looked at when a run begins and when something has happened."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from megatron_nanguard.device import Device
from megatron_nanguard.health.ascend import NpuSmi
from megatron_nanguard.health.difference import differences
from megatron_nanguard.health.host_machine import HostMachine
from megatron_nanguard.health.nvidia import Nvml
from megatron_nanguard.health.polling import Poll
from megatron_nanguard.health.source import Source, SourceAnswer
from megatron_nanguard.records.health import DeviceHealth, HealthReading


class HealthWatch:
    """Baseline of one device, and a look at it on demand. Nothing here waits but `report`, and that within bounds.

    Args:
        rank: global rank.
        device: how others than torch name it too.
        pci_address: of the device; empty when unknown.
        sources: what is asked.
        close: gives back what the sources hold.
    """

    def __init__(
        self,
        rank: int,
        device: str,
        pci_address: str,
        sources: Sequence[Source],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._rank, self._device, self._pci_address = rank, device, pci_address
        self._sources, self._close = sources, close
        self._first = Poll(sources)
        self._now: Poll | None = None

    def look(self) -> Poll:
        """Begin to look again, in the background; what hangs since an earlier look is not asked."""
        hanging = self._first.hanging() | (self._now.hanging() if self._now else {})
        self._now = Poll(self._sources, hanging=hanging)
        return self._now

    def close(self) -> None:
        """Nobody will look again."""
        self._close()

    def report(self, at_most: float) -> DeviceHealth:
        """What the last look found, beside the first one.

        Args:
            at_most: seconds to wait for sources that have not answered.
        """
        look = self._now or self.look()
        until = time.monotonic() + at_most
        now, first = look.collect(until).values(), self._first.collect(until).values()
        pci_address = self._pci_address or _pci_address((*now, *first))
        after = _of_rank(now, pci_address)
        problems = {told.problem: "" for told in now if told.problem}
        problems |= {told.problem: "at the start: " for told in first if told.problem not in ("", *problems)}
        return DeviceHealth(
            rank=self._rank,
            host=socket.gethostname(),
            device=self._device,
            since=self._first.taken,
            taken=look.taken,
            differences=differences(_of_rank(first, pci_address), after),
            readings=after,
            problems=tuple(when + problem for problem, when in problems.items()),
        )


def watch_device(rank: int, device: Device, index: int | None) -> HealthWatch:
    """Begin to watch the device that a rank computes on."""
    identity = device.identity(index)
    vendor: dict[str, Source] = {"cuda": Nvml(identity.vendor_id), "npu": NpuSmi(identity.vendor_id)}
    sources = [vendor[device.backend]] if device.backend in vendor else []
    number = device.backend if index is None else f"{device.backend}:{index}"
    name = ", ".join(filter(None, (number, identity.vendor_id)))
    host = HostMachine()
    return HealthWatch(rank, name, identity.pci_address, [*sources, host], host.close)


def _of_rank(told: Iterable[SourceAnswer], pci_address: str) -> tuple[HealthReading, ...]:
    """Events of the kernel's log belong to the device with their address; other ranks tell of other devices."""
    readings = (reading for one in told for reading in one.readings)
    mine = (replace(one, part="device") if one.part == pci_address else one for one in readings)
    return tuple(one for one in mine if not pci_address or one.part in ("device", "host"))


def _pci_address(told: Iterable[SourceAnswer]) -> str:
    states = (reading.states for one in told for reading in one.readings)
    return next((state["pci address"] for state in states if "pci address" in state), "")
