"""Reads the device arguments that torch accepts, and holds the index of the current device."""

from __future__ import annotations

import os
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import Function


class CurrentDevice:
    """The index that `torch.cuda.set_device` chose; every index is the CPU."""

    index = 0


current = CurrentDevice()


def device_count() -> int:
    """One device per rank of this machine, as on a real node.

    With no device Megatron's `_initialize_distributed` would skip the model-parallel groups.
    """
    return int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))


def index_of(device: Any) -> int:
    """Index of a device given as torch accepts it: None, a number, a string or a `torch.device`."""
    import torch

    if device is None:
        return current.index
    index = device if isinstance(device, int) else torch.device(device).index
    return current.index if index is None or index < 0 else int(index)


def is_cuda(device: Any) -> bool:
    """Whether torch would take this for a cuda device: Megatron also passes the bare index."""
    import torch

    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device == "cuda" or device.startswith("cuda:")
    return isinstance(device, int) and not isinstance(device, bool)


def on_cpu(device: Any) -> Any:
    """Return "cpu" for a cuda device, and any other device unchanged."""
    return "cpu" if is_cuda(device) else device


def made_for_cpu(constructor: Function) -> Function:
    """Wrap the constructor of a context that takes a device: "cpu" in place of a cuda device."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        # The device comes first, or by name: torch's custom_fwd and custom_bwd name it.
        first = map(on_cpu, args[:1])
        named = {name: on_cpu(value) if name in ("device", "device_type") else value for name, value in kwargs.items()}
        constructor(self, *first, *args[1:], **named)

    return init
