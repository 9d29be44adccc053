"""Watches the hardware of this rank: polls it when the run begins and at an incident, and reports the difference."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from megatron_nanguard.device import Device
from megatron_nanguard.health.ascend import NpuSmi
from megatron_nanguard.health.host_machine import HostMachine
from megatron_nanguard.health.nvidia import Nvml
from megatron_nanguard.health.polling import Poll, Source, SourceAnswer
from megatron_nanguard.health.severity import WORST_FIRST, severity_of_counter, severity_of_state
from megatron_nanguard.records.machine.health import DeviceHealth, HealthDifference, HealthReading


class HealthWatch:
    """A first poll of one device, and later ones on demand. Only `report` waits, up to a limit.

    Args:
        rank: global rank.
        device: its name for torch, and its id for the vendor's tools.
        pci_address: of the device; empty when unknown.
        sources: asked in each poll.
        close: releases what the sources hold.
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

    def poll(self) -> Poll:
        """Start another poll in the background; sources that hang since an earlier poll are not asked."""
        hanging = self._first.hanging() | (self._now.hanging() if self._now else {})
        self._now = Poll(self._sources, hanging=hanging)
        return self._now

    def close(self) -> None:
        """Release the sources; no poll may follow."""
        self._close()

    def report(self, at_most: float) -> DeviceHealth:
        """Compare the last poll with the first one.

        Args:
            at_most: seconds to wait for sources that have not answered.
        """
        last = self._now or self.poll()
        until = time.monotonic() + at_most
        now, first = last.collect(until).values(), self._first.collect(until).values()
        pci_address = self._pci_address or _pci_address((*now, *first))
        after = _of_rank(now, pci_address)
        problems = {answer.problem: "" for answer in now if answer.problem}
        problems |= {answer.problem: "at the start: " for answer in first if answer.problem not in ("", *problems)}
        return DeviceHealth(
            rank=self._rank,
            host=socket.gethostname(),
            device=self._device,
            since=self._first.taken,
            taken=last.taken,
            differences=differences(_of_rank(first, pci_address), after),
            readings=after,
            problems=tuple(when + problem for problem, when in problems.items()),
        )


def watch_device(rank: int, device: Device, index: int | None) -> HealthWatch:
    """Start to watch the device that a rank computes on."""
    identity = device.identity(index)
    vendor: dict[str, Source] = {"cuda": Nvml(identity.vendor_id), "npu": NpuSmi(identity.vendor_id)}
    sources = [vendor[device.backend]] if device.backend in vendor else []
    number = device.backend if index is None else f"{device.backend}:{index}"
    name = ", ".join(filter(None, (number, identity.vendor_id)))
    host = HostMachine()
    return HealthWatch(rank, name, identity.pci_address, [*sources, host], host.close)


def _of_rank(answers: Iterable[SourceAnswer], pci_address: str) -> tuple[HealthReading, ...]:
    """Readings of this rank's device and host; events of the kernel log belong to the device at their address."""
    readings = (reading for one in answers for reading in one.readings)
    mine = (replace(one, part="device") if one.part == pci_address else one for one in readings)
    return tuple(one for one in mine if not pci_address or one.part in ("device", "host"))


def _pci_address(answers: Iterable[SourceAnswer]) -> str:
    states = (reading.states for one in answers for reading in one.readings)
    return next((state["pci address"] for state in states if "pci address" in state), "")


def differences(before: Sequence[HealthReading], now: Sequence[HealthReading]) -> tuple[HealthDifference, ...]:
    """Counters that grew and states that changed, worst first.

    A source without a first reading is left out: its counts may be older than the run.
    """
    at_start = {(reading.source, reading.part): reading for reading in before}
    found: list[HealthDifference] = []
    for reading in now:
        earlier = at_start.get((reading.source, reading.part))
        if reading.source == "kernel log":  # it is opened when the run begins, so all its counts are new
            earlier = HealthReading(reading.source, reading.part, {}, {})
        if earlier is not None:
            found += _between(earlier, reading)
    return tuple(sorted(found, key=lambda difference: WORST_FIRST.index(difference.severity)))


def _between(before: HealthReading, now: HealthReading) -> Iterator[HealthDifference]:
    for name, count in now.counters.items():
        earlier = before.counters.get(name, 0)
        if count > earlier:
            yield HealthDifference(now.part, name, str(earlier), str(count), severity_of_counter(name))
    for name, state in now.states.items():
        earlier_state = before.states.get(name, "")
        severity = severity_of_state(name, state)
        if severity is not None and state != earlier_state:
            yield HealthDifference(now.part, name, earlier_state, state, severity)
