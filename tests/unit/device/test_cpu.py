"""The CPU as a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from megatron_nanguard.device import cpu, device_of
from megatron_nanguard.device.cpu import CpuDevice


def test_the_state_is_that_of_the_generator_which_draws_dropout() -> None:
    device = device_of("cpu")
    state = device.rng_state()
    first = torch.rand(4)
    assert not torch.equal(device.rng_state(), state)
    torch.default_generator.set_state(state)
    assert torch.equal(torch.rand(4), first)
    assert (state.dtype, state.device.type) == (torch.uint8, "cpu")


def test_facts_name_the_processor_and_the_memory_of_the_host() -> None:
    facts = CpuDevice().facts(index=3)
    assert (facts.backend, facts.index, facts.overflow_mode) == ("cpu", None, "not_applicable")
    assert facts.name
    assert facts.memory_total_bytes is not None
    assert facts.memory_total_bytes > 2**28
    assert facts.details["threads"] == str(torch.get_num_threads())


def test_the_processor_name_is_read_from_the_kernel_or_else_asked_of_python(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    assert cpu._processor_name(listing) in (cpu.platform.processor(), cpu.platform.machine())
    listing.write_text("processor\t: 0\nmodel name\t: Kunpeng 920\nflags\t: fp\n")
    assert cpu._processor_name(listing) == "Kunpeng 920"


def test_a_state_that_is_put_back_draws_the_same_again() -> None:
    device = CpuDevice()
    state = device.rng_state()
    first = torch.rand(4)
    device.set_rng_state(state)
    assert torch.equal(torch.rand(4), first)


def test_the_generator_is_the_devices_own_where_the_cpu_has_a_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "default_generator", torch.Generator().manual_seed(1))
    before = CpuDevice().rng_state()
    torch.nn.functional.dropout(torch.ones(4), 0.5)
    assert not torch.equal(CpuDevice().rng_state(), before)


def test_free_memory_is_part_of_all_memory() -> None:
    total = CpuDevice().facts().memory_total_bytes
    assert total is not None
    assert 0 < CpuDevice().free_bytes() < total


def test_any_number_takes_the_processor() -> None:
    assert CpuDevice().take(3) == "cpu"
