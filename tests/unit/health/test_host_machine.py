"""Counters of the host, and lines of the kernel's log, from a file in the form of the device's records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from megatron_nanguard.health.host_machine import HostMachine, KernelLog, memory_errors
from megatron_nanguard.records.machine.health import HealthReading

OLD = "6,100,1000000,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=python, DBE\n"
XIDS = """\
6,101,2000000,-;NVRM: Xid (PCI:0000:3B:00): 48, pid=4711, name=python, DBE (double bit error) detected
 SUBSYSTEM=pci
 DEVICE=+pci:0000:3b:00.0
6,102,2000001,-;NVRM: Xid (PCI:0000:3b:00): 63, pid=4711, Row Remapper: New row marked for remapping
6,103,2000002,-;NVRM: Xid (PCI:0000:3b:00.0): 48, pid=4711, DBE
4,104,2000003,-;NVRM: Xid (PCI:0000:86:00): 13, Graphics Exception
"""
HOST = """\
3,105,2000004,-;EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0
3,106,2000005,-;EDAC MC0: 2 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0
2,107,2000006,-;{1}[Hardware Error]: event severity: recoverable
2,108,2000007,-;mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7
6,109,2000008,-;audit: an UE that is none
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "kmsg"
    file.write_text(OLD)
    return file


@pytest.fixture
def log(path: Path) -> Iterator[KernelLog]:
    with closing(KernelLog(path)) as opened:
        yield opened


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


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


# ---------------------------------------------------------------- the log


def test_what_was_there_before_is_not_counted(log: KernelLog) -> None:
    assert log.problem == ""
    assert log.counts() == {"host": {}}


def test_events_of_devices_are_counted_under_their_pci_address(log: KernelLog, path: Path) -> None:
    append(path, XIDS)
    assert log.counts() == {
        "host": {},
        "0000:3b:00": {"Xid 48, double bit ECC error": 2, "Xid 63, row remapping or page retirement recorded": 1},
        "0000:86:00": {"Xid 13": 1},
    }


def test_events_of_the_host_are_counted_by_kind(log: KernelLog, path: Path) -> None:
    append(path, HOST)
    once = {
        "EDAC UE, uncorrectable memory error": 1,
        "EDAC CE, memory error": 1,
        "firmware: uncorrected hardware error": 1,
        "machine check exception, uncorrected": 1,
    }
    assert log.counts() == {"host": once}
    append(path, HOST)
    assert log.counts() == {"host": dict.fromkeys(once, 2)}


def test_an_unreadable_log_gives_a_problem(tmp_path: Path) -> None:
    missing = KernelLog(tmp_path / "none")
    assert missing.problem == f"{tmp_path / 'none'}: No such file or directory"
    assert missing.counts() == {"host": {}}
