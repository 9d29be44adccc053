"""Device memory: there is none of its own, so every number is zero."""

from __future__ import annotations

import collections
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes
from megatron_nanguard.cpurun.mapping.queries import PROPERTIES

NUMBERS = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_cached",
    "max_memory_cached",
    "device_memory_used",
    "memory_usage",
    "utilization",
    "temperature",
    "power_draw",
    "clock_rate",
)
ACTIONS = (
    "empty_cache",
    "ipc_collect",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "set_per_process_memory_fraction",
)


def _zero(*args: Any, **kwargs: Any) -> int:
    return 0


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def map_memory(changes: ChangedAttributes, torch: Any) -> None:
    """Megatron's `report_memory` and its training log ask for these."""
    answers: dict[str, object] = dict.fromkeys(NUMBERS, _zero) | dict.fromkeys(ACTIONS, _nothing)
    answers |= {
        "memory_stats": lambda device=None: collections.defaultdict(int),
        "host_memory_stats": lambda: collections.defaultdict(int),
        "memory_summary": lambda *args, **kwargs: "mapped-cpu: no device memory\n",
        "memory_snapshot": lambda *args, **kwargs: [],
        "mem_get_info": lambda device=None: (PROPERTIES.total_memory, PROPERTIES.total_memory),
    }
    for name, answer in answers.items():
        changes.put(torch.cuda, name, answer)
        if hasattr(torch.cuda.memory, name):
            changes.put(torch.cuda.memory, name, answer)
