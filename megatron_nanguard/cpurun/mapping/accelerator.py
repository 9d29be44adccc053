"""`torch.accelerator`, autocast, profiler ranges and `torch.compile`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes
from megatron_nanguard.cpurun.mapping.device_arguments import made_for_cpu


def map_accelerator(changes: ChangedAttributes, torch: ModuleType) -> None:
    """`torch.accelerator` reports that there is none, autocast casts on the CPU, profiler ranges do nothing."""
    # torch's Adam asks torch.accelerator every step and would start the CUDA runtime; DataLoader would pin memory.
    no_accelerator = {
        "current_accelerator": lambda check_available=False: None,
        "is_available": lambda: False,
        "device_count": lambda: 0,
    }
    changes.put_all(torch.accelerator, no_accelerator)
    changes.wrap(torch.amp.autocast_mode.autocast, "__init__", made_for_cpu)
    no_ranges = {
        "range_push": lambda msg: 0,
        "range_pop": lambda: 0,
        "range_start": lambda msg: 0,
        "range_end": lambda range_id: None,
        "mark": lambda msg: None,
        "range": _no_range,
    }
    changes.put_all(torch.cuda.nvtx, no_ranges)


@contextlib.contextmanager
def _no_range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def map_compiling(changes: ChangedAttributes, torch: ModuleType) -> None:
    """`torch.compile` returns the function as it is; inductor would start a C++ compiler in every rank.

    Megatron's `jit_fuser` and the MoE router call it.
    """
    unchanged = lambda function: function  # noqa: E731
    changes.wrap(torch, "compile", lambda original: lambda model=None, **kwargs: unchanged if model is None else model)
