"""Ascend cards through torch_npu; checks for NaN and Inf work in one of their two overflow modes only.

overflow mode: saturation (INF_NAN_MODE_ENABLE=0, INF_NAN_MODE_FORCE_DISABLE=1)
"""

from __future__ import annotations

import importlib
import os
from itertools import takewhile
from typing import Any, Final

from megatron_nanguard.device.protocol import Accelerator, Identity
from megatron_nanguard.records.machine.device import DeviceFacts, OverflowMode

SATURATION_WARNING: Final = (
    "this Ascend card runs in saturation mode: an overflow becomes the largest number and NaN becomes 0, so every "
    "check for NaN and Inf is blind, this one and Megatron's. Unset INF_NAN_MODE_FORCE_DISABLE and set "
    "INF_NAN_MODE_ENABLE=1 before the start; cards of the first generation know this mode only, and there the loss "
    "scaler's overflow flag is the one sign left"
)

SWITCHES: Final = (
    "INF_NAN_MODE_ENABLE",
    "INF_NAN_MODE_FORCE_DISABLE",
    "ASCEND_LAUNCH_BLOCKING",
    "TASK_QUEUE_ENABLE",
    "MULTI_STREAM_MEMORY_REUSE",
    "PYTORCH_NO_NPU_MEMORY_CACHING",
    "HCCL_DETERMINISTIC",
    "CLOSE_MATMUL_K_SHIFT",
    "HCCL_INTRA_ROCE_ENABLE",
    "HCCL_INTRA_PCIE_ENABLE",
)
"""Environment variables that users change to debug a NaN on Ascend; those that are set are recorded."""


class NpuDevice(Accelerator):
    """The Ascend card this rank runs on; torch_npu must be installed."""

    backend = "npu"

    def __init__(self) -> None:
        self.torch_api: Any = importlib.import_module("torch_npu").npu

    def facts(self, index: int | None = None) -> DeviceFacts:
        """Name, memory, CANN level and the switches of `SWITCHES` that are set."""
        index = self.torch_api.current_device() if index is None else index
        return DeviceFacts(
            backend=self.backend,
            index=index,
            name=self.torch_api.get_device_name(index),
            overflow_mode=self.overflow_mode(),
            memory_total_bytes=self.torch_api.get_device_properties(index).total_memory,
            details={**self._versions(), **{name: os.environ[name] for name in SWITCHES if name in os.environ}},
        )

    def identity(self, index: int | None = None) -> Identity:
        """The logic id, which npu-smi maps to a card and a chip; ASCEND_RT_VISIBLE_DEVICES may hide some from torch."""
        index = self.torch_api.current_device() if index is None else index
        # CANN ignores everything after the first entry that is no number.
        visible = list(takewhile(str.isdigit, os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "").split(",")))
        return Identity(visible[index] if index < len(visible) else str(index))

    def overflow_mode(self) -> OverflowMode:
        """The mode that the driver chose; environment variables are only part of its decision.

        Source: torch_npu/npu/utils.py, is_support_inf_nan.
        """
        return "inf_nan" if self.torch_api.utils.is_support_inf_nan() else "saturation"

    def _versions(self) -> dict[str, str]:
        versions = {"torch_npu": str(importlib.import_module("torch_npu").__version__)}
        # torch_npu 2.1.0 lacks it.
        if hasattr(self.torch_api.utils, "get_cann_version"):
            versions["cann"] = str(self.torch_api.utils.get_cann_version())
        return versions
