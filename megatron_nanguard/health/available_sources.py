"""Lists the sources of hardware readings on this machine, for `nanguard doctor`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Final, NamedTuple

from megatron_nanguard.health.ascend import count_chips
from megatron_nanguard.health.host_machine import MEMORY_CONTROLLERS, KernelLog, memory_errors
from megatron_nanguard.health.nvidia import count_gpus
from megatron_nanguard.health.polling import Poll, SourceAnswer
from megatron_nanguard.records.machine.doctor import SourceState
from megatron_nanguard.records.machine.health import HealthReading


class _Question(NamedTuple):
    """A source whose only reading is a sentence: what it found, or why it found nothing."""

    name: str
    ask: Callable[[], int | str]
    found: str

    def read(self) -> SourceAnswer:
        answer = self.ask()
        if isinstance(answer, str):
            return SourceAnswer(problem=answer)
        return SourceAnswer((HealthReading(self.name, "host", {}, {"found": self.found.format(answer)}),))


def list_sources() -> tuple[SourceState, ...]:
    """Ask each source once, with a time limit."""
    return tuple(
        SourceState(name, not answer.problem, answer.problem or answer.readings[0].states["found"])
        for name, answer in Poll(QUESTIONS).collect().items()
    )


def _lines() -> int | str:
    with closing(KernelLog()) as log:
        return log.problem or 0


def _memory() -> int | str:
    counted = memory_errors()
    return sum(counted.values()) if counted else f"no memory controller under {MEMORY_CONTROLLERS}"


QUESTIONS: Final = (
    _Question("NVML", count_gpus, "{} GPUs"),
    _Question("npu-smi", count_chips, "{} Ascend chips"),
    _Question("kernel log", _lines, "readable"),
    _Question("EDAC", _memory, "{} memory errors since the host started"),
)
