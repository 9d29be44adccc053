"""The sources that `nanguard doctor` lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_nanguard.health import ascend, available_sources, host_machine
from megatron_nanguard.records.machine.doctor import SourceState
from tests.unit.health import samples
from tests.unit.health.stand_ins import HANGS, put_npu_smi, put_nvml
from tests.unit.health.test_host_machine import controllers


def test_each_source_says_what_it_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_nvml(monkeypatch)
    put_npu_smi(monkeypatch, tmp_path, samples.npu_smi())
    (tmp_path / "kmsg").touch()
    monkeypatch.setattr(host_machine.KernelLog.__init__, "__defaults__", (tmp_path / "kmsg",))
    monkeypatch.setattr(available_sources.memory_errors, "__defaults__", (controllers(tmp_path / "mc"),))
    assert available_sources.list_sources() == (
        SourceState("NVML", True, "1 GPUs"),
        SourceState("npu-smi", True, "2 Ascend chips"),
        SourceState("kernel log", True, "readable"),
        SourceState("EDAC", True, "8 memory errors since the host started"),
    )


def test_each_source_says_why_it_found_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_nvml(monkeypatch).why_no_driver = "Driver Not Loaded"
    monkeypatch.setattr(ascend, "TOOL_SECONDS", 0.2)
    put_npu_smi(monkeypatch, tmp_path, {"-m": HANGS})
    monkeypatch.setattr(host_machine.KernelLog.__init__, "__defaults__", (tmp_path / "kmsg",))
    monkeypatch.setattr(available_sources.memory_errors, "__defaults__", (tmp_path / "mc",))
    assert available_sources.list_sources() == (
        SourceState("NVML", False, "NVML does not start: Driver Not Loaded"),
        SourceState("npu-smi", False, "npu-smi info -m: no answer within 0.2 s"),
        SourceState("kernel log", False, f"{tmp_path / 'kmsg'}: No such file or directory"),
        SourceState("EDAC", False, "no memory controller under /sys/devices/system/edac/mc"),
    )
