"""NVIDIA GPUs, and AMD ones, which torch also calls cuda."""

from __future__ import annotations

import torch
from torch import Tensor

from megatron_nanguard.records.device import DeviceFacts, OverflowMode


class CudaDevice:
    """The GPU this rank runs on."""

    backend = "cuda"

    def facts(self, index: int | None = None) -> DeviceFacts:
        """Name, memory and the settings that decide how numbers are computed."""
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

    def rng_state(self) -> Tensor:
        """State of the current GPU's default generator."""
        return torch.cuda.get_rng_state()

    def set_rng_state(self, state: Tensor) -> None:
        """Put the current GPU's default generator into an earlier state."""
        torch.cuda.set_rng_state(state)

    def free_bytes(self) -> int:
        """Memory of the current GPU that no process has taken."""
        return int(torch.cuda.mem_get_info()[0])

    def synchronize(self) -> None:
        """Wait for all streams of the current GPU.

        Sync: the host waits for the device.
        """
        torch.cuda.synchronize()

    def overflow_mode(self) -> OverflowMode:
        """GPUs know IEEE only, fp8 aside, which no gradient buffer holds."""
        return "not_applicable"
