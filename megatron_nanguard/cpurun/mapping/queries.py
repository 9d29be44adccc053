"""Questions about devices: how many, which one, what it can do, how much memory is taken (none)."""

from __future__ import annotations

import collections
import types
from types import ModuleType
from typing import Any

from megatron_nanguard.cpurun.errors import UnmappedCuda
from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes
from megatron_nanguard.cpurun.mapping.device_arguments import current, device_count, index_of

# Compute capability 8.0 is the least that grouped GEMM accepts.
PROPERTIES = types.SimpleNamespace(
    name="mapped-cpu",
    major=8,
    minor=0,
    total_memory=80 << 30,
    multi_processor_count=1,
    warp_size=32,
    is_integrated=False,
    is_multi_gpu_board=False,
    gcnArchName="",
    uuid="0",
    max_threads_per_multi_processor=2048,
    L2_cache_size=1 << 20,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=49152,
    shared_memory_per_multiprocessor=49152,
)

MEMORY_NUMBERS = (
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
MEMORY_ACTIONS = (
    "empty_cache",
    "ipc_collect",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "set_per_process_memory_fraction",
)


class DeviceContext:
    """`with torch.cuda.device(n):` makes n the current index."""

    def __init__(self, device: Any) -> None:
        self.index = index_of(device)
        self.previous = current.index

    def __enter__(self) -> None:
        self.previous, current.index = current.index, self.index

    def __exit__(self, *exc: object) -> None:
        current.index = self.previous


def set_device(device: Any) -> None:
    """Make a device current; like torch, refuse an index without a device (there is one per local rank)."""
    index = index_of(device)
    if index >= device_count():
        raise RuntimeError(f"set_device({device!r}): index below {device_count()} expected (one device per local rank)")
    current.index = index


def lazy_init() -> None:
    """Refuse to start the CUDA runtime: a call that is not mapped has passed a cuda device to C++."""
    raise UnmappedCuda(
        "torch was asked to start the real CUDA runtime: a call that is not mapped took a cuda device down to C++; "
        "please report it with this traceback, which shows the call, to the megatron_nanguard issue tracker"
    )


def map_queries(changes: ChangedAttributes, torch: ModuleType) -> None:
    """Answer as one device per local rank; Megatron requires `is_available`, its timers and RNG code ask the rest."""
    answers: dict[str, object] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lazy_init,
        # torch queues the call until the runtime starts, which is never: _set_cuda_rng_state comes this way.
        "_lazy_call": lambda call, **kwargs: call(),
        "device_count": device_count,
        "current_device": lambda: current.index,
        "set_device": set_device,
        "device": DeviceContext,
        "device_of": lambda obj: DeviceContext(None),
        "get_device_name": lambda device=None: PROPERTIES.name,
        "get_device_properties": lambda device=None: PROPERTIES,
        "get_device_capability": lambda device=None: (PROPERTIES.major, PROPERTIES.minor),
        "get_arch_list": lambda: ["sm_80"],
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: False,
        "can_device_access_peer": lambda device, peer_device: False,
        "_get_device_index": lambda device, optional=False, allow_cpu=False: index_of(device),
    }
    changes.put_all(torch.cuda, answers)


def map_memory(changes: ChangedAttributes, torch: ModuleType) -> None:
    """Report no device memory in use; Megatron's `report_memory` and its training log ask for it."""
    answers: dict[str, object] = dict.fromkeys(MEMORY_NUMBERS, lambda *args, **kwargs: 0)
    answers |= dict.fromkeys(MEMORY_ACTIONS, lambda *args, **kwargs: None)
    answers |= {
        "memory_stats": lambda device=None: collections.defaultdict(int),
        "host_memory_stats": lambda: collections.defaultdict(int),
        "memory_summary": lambda *args, **kwargs: "mapped-cpu: no device memory\n",
        "memory_snapshot": lambda *args, **kwargs: [],
        "mem_get_info": lambda device=None: (PROPERTIES.total_memory, PROPERTIES.total_memory),
    }
    changes.put_all(torch.cuda, answers)
    changes.put_all(
        torch.cuda.memory, {name: each for name, each in answers.items() if hasattr(torch.cuda.memory, name)}
    )
