"""The accelerator that holds a tensor: cuda, npu or cpu, with one protocol; the only room with code for a vendor.

The device is read from a tensor. ``torch.cuda.is_available()`` cannot be used: it is True with torch_npu's
``transfer_to_npu`` too, and with Megatron on CPU ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from megatron_nanguard.device.cpu import CpuDevice
from megatron_nanguard.device.cuda import CudaDevice
from megatron_nanguard.device.npu import SATURATION_WARNING, NpuDevice
from megatron_nanguard.device.protocol import Device

__all__ = ["BACKENDS", "SATURATION_WARNING", "Device", "device_of", "training_device"]

BACKENDS: Final[Mapping[str, type[Device]]] = {"cpu": CpuDevice, "cuda": CudaDevice, "npu": NpuDevice}
"""Backend by ``torch.device.type``."""


def device_of(tensor_or_type: Tensor | str) -> Device:
    """The device of a tensor, or of a ``torch.device.type``.

    Raises:
        ValueError: there is no backend for that type.
    """
    kind = tensor_or_type.device.type if isinstance(tensor_or_type, Tensor) else tensor_or_type
    if kind not in BACKENDS:
        raise ValueError(f"device type {kind!r} has no backend here; there are {', '.join(BACKENDS)}")
    return BACKENDS[kind]()


def training_device() -> Device:
    """The device that Megatron trains on: npu if torch_npu is imported and finds a card, else cuda, else cpu."""
    torch_npu = sys.modules.get("torch_npu")
    if torch_npu is not None and torch_npu.npu.is_available():
        return NpuDevice()
    if not torch.cuda.is_available():
        return CpuDevice()
    return device_of(torch.empty(0, device="cuda"))
