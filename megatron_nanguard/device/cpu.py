"""CPU ranks: plain gloo runs and Megatron under ``nanguard cpu-run``."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch
from torch import Tensor

from megatron_nanguard.device.protocol import Identity
from megatron_nanguard.records.machine.device import DeviceFacts, OverflowMode

_GENERATOR = torch._C.default_generator
"""The generator that `nanguard cpu-run` leaves to the device; there ``torch.default_generator`` and
``torch.get_rng_state`` are mapped to a second one."""


class CpuDevice:
    """The processor this rank runs on."""

    backend = "cpu"

    def take(self, index: int) -> str:
        """Return "cpu"; the number has no effect."""
        return "cpu"

    def facts(self, index: int | None = None) -> DeviceFacts:
        """Processor name, memory of the host and threads of this rank; the number has no effect."""
        return DeviceFacts(
            backend=self.backend,
            index=None,
            name=_processor_name(),
            overflow_mode=self.overflow_mode(),
            memory_total_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            details={"threads": str(torch.get_num_threads()), "capability": torch.backends.cpu.get_cpu_capability()},
        )

    def identity(self, index: int | None = None) -> Identity:
        """Empty: readings of the processor are those of the host."""
        return Identity()

    def rng_state(self) -> Tensor:
        """State of torch's default generator, which draws dropout on the CPU."""
        return _GENERATOR.get_state()

    def set_rng_state(self, state: Tensor) -> None:
        """Put torch's default generator into an earlier state."""
        _GENERATOR.set_state(state)

    def free_bytes(self) -> int:
        """Free memory of the host."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")

    def synchronize(self) -> None:
        """No effect: operators on the CPU have finished when they return."""

    def overflow_mode(self) -> OverflowMode:
        """The CPU has IEEE arithmetic only."""
        return "not_applicable"


def _processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
