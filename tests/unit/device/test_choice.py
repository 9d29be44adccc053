"""The backend of a tensor, and of the device that Megatron trains on."""

from __future__ import annotations

import pytest
import torch

from megatron_nanguard.device import BACKENDS, CpuDevice, CudaDevice, NpuDevice, device_of, training_device
from tests.unit.device.stand_in_npu import put_in_place


def test_a_tensor_is_asked_where_it_is() -> None:
    assert isinstance(device_of(torch.zeros(1)), CpuDevice)


def test_every_backend_answers_to_its_own_type(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    assert {kind: device_of(kind).backend for kind in BACKENDS} == {"cpu": "cpu", "cuda": "cuda", "npu": "npu"}


def test_an_unknown_type_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="device type 'meta' has no backend here; there are cpu, cuda, npu"):
        device_of(torch.empty(1, device="meta"))


def test_training_is_on_the_cpu_where_there_is_nothing_else() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert isinstance(training_device(), CpuDevice)


def test_cuda_that_is_mapped_to_the_cpu_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch, "empty", lambda *size, device: empty(*size, device="cpu" if device == "cuda" else device)
    )
    assert isinstance(training_device(), CpuDevice)


def test_an_ascend_card_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    npu = put_in_place(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert isinstance(training_device(), NpuDevice)
    npu.available = False
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert isinstance(training_device(), CpuDevice)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_a_gpu_answers_the_whole_protocol() -> None:
    device = training_device()
    assert isinstance(device, CudaDevice)
    facts = device.facts()
    assert facts.name == torch.cuda.get_device_name()
    assert (facts.backend, facts.overflow_mode) == ("cuda", "not_applicable")
    state = device.rng_state()
    first = torch.rand(4, device="cuda")
    device.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="cuda"), first)
    assert 0 < device.free_bytes() <= torch.cuda.get_device_properties().total_memory
    device.synchronize()
