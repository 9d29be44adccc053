"""NVIDIA GPUs, and AMD GPUs, which torch calls cuda as well."""

from __future__ import annotations

import os
from typing import Any

import torch

from megatron_nanguard.device.protocol import Accelerator, Identity
from megatron_nanguard.records.machine.device import DeviceFacts, OverflowMode


class CudaDevice(Accelerator):
    """The GPU this rank runs on."""

    backend = "cuda"
    torch_api = torch.cuda

    def facts(self, index: int | None = None) -> DeviceFacts:
        """Name, memory, and the settings that affect numerics."""
        index = torch.cuda.current_device() if index is None else index
        properties = torch.cuda.get_device_properties(index)
        matmul = torch.backends.cuda.matmul
        return DeviceFacts(
            backend=self.backend,
            index=index,
            name=properties.name,
            overflow_mode=self.overflow_mode(),
            memory_total_bytes=properties.total_memory,
            details={
                "capability": f"{properties.major}.{properties.minor}",
                "runtime": f"hip {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}",
                "allow_tf32": str(matmul.allow_tf32),
                "allow_bf16_reduced_precision_reduction": str(matmul.allow_bf16_reduced_precision_reduction),
                "allow_fp16_reduced_precision_reduction": str(matmul.allow_fp16_reduced_precision_reduction),
            },
        )

    def identity(self, index: int | None = None) -> Identity:
        """The UUID, since CUDA and NVML number GPUs differently; for a MIG slice its name in CUDA_VISIBLE_DEVICES.

        Older versions of torch have neither UUID nor PCI address.
        """
        index = torch.cuda.current_device() if index is None else index
        properties: Any = torch.cuda.get_device_properties(index)
        visible = _visible(index)
        named = f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else visible
        address = ""
        if hasattr(properties, "pci_bus_id"):
            place = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
            address = "{:04x}:{:02x}:{:02x}".format(*place)
        return Identity(visible if visible.startswith("MIG-") else named, address)

    def overflow_mode(self) -> OverflowMode:
        """GPUs have IEEE arithmetic only, except for fp8, which no gradient buffer uses."""
        return "not_applicable"


def _visible(index: int) -> str:
    """Name of this device in CUDA_VISIBLE_DEVICES; empty where the variable has a number."""
    entries = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    entry = entries[index].strip() if index < len(entries) else ""
    return entry if entry.startswith(("GPU-", "MIG-")) else ""
