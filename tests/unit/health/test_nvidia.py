"""NVIDIA GPUs, through a stand-in for NVML."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from megatron_nanguard.health.nvidia import NOT_INSTALLED, Nvml, count_gpus, pci_address
from megatron_nanguard.records.machine.health import HealthReading
from tests.unit.health.stand_ins import UUID, StandInNvml, put_nvml


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> StandInNvml:
    return put_nvml(monkeypatch)


def test_a_gpu_is_read_and_nvml_left_as_it_was(nvml: StandInNvml) -> None:
    nvml.uncorrected = 2
    nvml.reasons = 0x4 | 0x40
    answer = Nvml(UUID).read()
    assert answer.problem == ""
    assert answer.readings == (
        HealthReading(
            source="nvml",
            part="device",
            counters={
                "remapped rows, correctable": 1,
                "remapped rows, uncorrectable": 2,
                "ECC errors, corrected, volatile": 4,
                "ECC errors, corrected, aggregate": 5,
                "ECC errors, uncorrected, volatile": 2,
                "ECC errors, uncorrected, aggregate": 2,
                "NVLink replay errors": 3,  # links 1 and 2
                "NVLink recovery errors": 23,
                "NVLink CRC errors, flits": 43,
            },
            states={
                "driver": "550.54.15",
                "pci address": "0000:3b:00",
                "temperature": "61 C",
                "clocks limited by": "hardware thermal slowdown",
                "row remap pending": "yes",
                "row remap failure": "no",
            },
        ),
    )
    assert nvml.is_started == 0


def test_the_power_cap_is_not_reported_as_a_limit(nvml: StandInNvml) -> None:
    (reading,) = Nvml(UUID).read().readings
    assert reading.states["clocks limited by"] == "nothing"


def test_a_device_that_nvml_does_not_know_is_a_problem(nvml: StandInNvml) -> None:
    assert Nvml("GPU-0").read() == ((), "NVML does not know device GPU-0: Not Found")
    assert Nvml("").read() == ((), "this version of torch does not tell the UUID of its devices")
    assert nvml.is_started == 0


def test_a_host_without_a_driver_is_a_problem(nvml: StandInNvml) -> None:
    nvml.why_no_driver = "NVML Shared Library Not Found"
    assert Nvml(UUID).read() == ((), "NVML does not start: NVML Shared Library Not Found")
    assert count_gpus() == "NVML does not start: NVML Shared Library Not Found"


def test_without_the_package_the_problem_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Nvml(UUID).read() == ((), NOT_INSTALLED)
    assert count_gpus() == NOT_INSTALLED
    assert "pip install 'megatron_nanguard[nvidia]'" in NOT_INSTALLED


def test_gpus_are_counted(nvml: StandInNvml) -> None:
    assert count_gpus() == 1
    assert nvml.is_started == 0


def test_an_address_is_written_as_the_kernel_does() -> None:
    assert pci_address("00000000:3B:00.0") == "0000:3b:00"
    assert pci_address("00010000:C1:1f.0") == "10000:c1:1f"
    assert pci_address("none") == ""


def test_the_stand_in_has_no_name_that_the_real_module_lacks() -> None:
    real: Any = importlib.import_module("pynvml")
    mine = [name for name in vars(StandInNvml) if name.lower().startswith("nvml")]
    assert len(mine) > 20
    assert [name for name in mine if not hasattr(real, name)] == []


def test_the_real_module_reports_a_missing_driver() -> None:
    answer = count_gpus()
    assert isinstance(answer, int) or answer.startswith("NVML does not start: ")
