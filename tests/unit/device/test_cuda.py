"""The id of a GPU for NVIDIA's tools, with stand-in properties."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from megatron_nanguard.device import CudaDevice
from megatron_nanguard.device.protocol import Identity

NOW = SimpleNamespace(uuid="5d1f0c3e-0000-0000-0000-00000000000a", pci_domain_id=0, pci_bus_id=59, pci_device_id=0)
OLD = SimpleNamespace()
MIG = "MIG-11111111-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("properties", "visible", "identity"),
    [
        (NOW, None, Identity("GPU-5d1f0c3e-0000-0000-0000-00000000000a", "0000:3b:00")),
        (NOW, "6,7", Identity("GPU-5d1f0c3e-0000-0000-0000-00000000000a", "0000:3b:00")),
        (NOW, f"6,{MIG}", Identity(MIG, "0000:3b:00")),
        (OLD, "6,7", Identity("", "")),
        (OLD, "GPU-0, GPU-5d1f0c3e", Identity("GPU-5d1f0c3e", "")),
        (OLD, None, Identity("", "")),
    ],
)
def test_the_second_visible_gpu(
    properties: SimpleNamespace, visible: str | None, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert CudaDevice().identity() == identity
