"""Counters and log of the host."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from megatron_nanguard.health.host_machine import HostMachine, memory_errors
from megatron_nanguard.health.kernel_log import KernelLog
from megatron_nanguard.records.machine.health import HealthReading
from tests.unit.health.test_kernel_log import HOST, append


def controllers(folder: Path) -> Path:
    """Two memory controllers: 1 and 0 errors that could not be mended, 3 and 4 that could."""
    for name, lost, mended in (("mc0", 1, 3), ("mc1", 0, 4)):
        (folder / name).mkdir(parents=True)
        (folder / name / "ue_count").write_text(f"{lost}\n")
        (folder / name / "ce_count").write_text(f"{mended}\n")
    return folder


def test_errors_are_summed_over_the_memory_controllers(tmp_path: Path) -> None:
    assert memory_errors(controllers(tmp_path / "mc")) == {
        "memory errors, uncorrectable": 1,
        "memory errors, corrected": 7,
    }
    assert memory_errors(tmp_path / "none") == {}


def test_counters_and_lines_are_two_readings(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    with closing(KernelLog(path)) as log:
        host = HostMachine(controllers(tmp_path / "mc"), log)
        (edac,) = host.read().readings
        append(path, HOST.splitlines(keepends=True)[0])
        assert host.read() == (
            (edac, HealthReading("kernel log", "host", {"EDAC UE, uncorrectable memory error": 1}, {})),
            "",
        )


def test_a_host_without_counters_is_no_problem(tmp_path: Path) -> None:
    assert HostMachine(tmp_path / "none", KernelLog(tmp_path / "none")).read() == ((), "")
