"""A stand-in for torch_npu: the names that `device/npu.py` reads, with values that a test can change.

That a real torch_npu has these names is checked by `test_npu_names.py`.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor


class StandInNpu:
    """`torch_npu.npu` of a host with two cards."""

    def __init__(self) -> None:
        self.available = True
        self.waits = 0
        self.current = 1
        self.state = torch.tensor([7, 0, 9], dtype=torch.uint8)
        self.utils = SimpleNamespace(is_support_inf_nan=lambda: True, get_cann_version=lambda: "8.1.RC1")

    def is_available(self) -> bool:
        return self.available

    def current_device(self) -> int:
        return self.current

    def set_device(self, index: int) -> None:
        self.current = index

    def get_device_name(self, index: int) -> str:
        return ("Ascend910B1", "Ascend910B2")[index]

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=(32 << 30, 64 << 30)[index])

    def get_rng_state(self) -> Tensor:
        return self.state

    def set_rng_state(self, state: Tensor) -> None:
        self.state = state

    def mem_get_info(self) -> tuple[int, int]:
        return 5 << 30, 64 << 30

    def synchronize(self) -> None:
        self.waits += 1


def put_in_place(monkeypatch: pytest.MonkeyPatch) -> StandInNpu:
    """Make `import torch_npu` find the stand-in for the length of a test."""
    module = ModuleType("torch_npu")
    npu = StandInNpu()
    module.__dict__.update(npu=npu, __version__="2.6.0")
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return npu
