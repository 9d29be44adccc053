"""Questions about devices: how many, which one, what it can do."""

from __future__ import annotations

import types
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


class DeviceContext:
    """`torch.cuda.device(n)`: the index is n inside."""

    def __init__(self, device: Any) -> None:
        self.index = index_of(device)
        self.previous = current.index

    def __enter__(self) -> None:
        self.previous, current.index = current.index, self.index

    def __exit__(self, *exc: object) -> None:
        current.index = self.previous


def set_device(device: Any) -> None:
    """Make a device current; an index beyond the last rank of this machine is refused, as by the real one."""
    index = index_of(device)
    if index >= device_count():
        raise RuntimeError(f"set_device({device!r}): index below {device_count()} expected (one device per local rank)")
    current.index = index


def lazy_init() -> None:
    """Nothing may start the real runtime: whoever tries took a cuda device past the mapping."""
    raise UnmappedCuda(
        "torch was asked to start the real CUDA runtime: a call that is not mapped took a cuda device down to C++; "
        "please report it with this traceback, which shows the call, to the megatron_nanguard issue tracker"
    )


def map_queries(changes: ChangedAttributes, torch: Any) -> None:
    """Megatron insists on `is_available`; timers, RNG code and memory reports ask the rest."""
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
    for name, answer in answers.items():
        changes.put(torch.cuda, name, answer)
