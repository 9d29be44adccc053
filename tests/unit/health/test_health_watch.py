"""One device from the first poll to the differences at an incident."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from megatron_nanguard.device import NpuDevice, device_of
from megatron_nanguard.health import ascend, health_watch, polling
from megatron_nanguard.health.health_watch import HealthWatch, differences, watch_device
from megatron_nanguard.health.host_machine import HostMachine, KernelLog
from megatron_nanguard.health.nvidia import Nvml
from megatron_nanguard.records.machine.health import DeviceHealth, HealthDifference, HealthReading
from tests.unit.device.stand_in_npu import put_in_place
from tests.unit.health import samples
from tests.unit.health.stand_ins import HANGS, UUID, put_npu_smi, put_nvml
from tests.unit.health.test_host_machine import XIDS, append

DOUBLE = HealthDifference("device", "HBM Double Bit Error Count", "0", "2", "uncorrectable")
TOTAL = HealthDifference("device", "HBM Double Bit Aggregate Total Err Cnt", "0", "2", "uncorrectable")


@pytest.fixture(autouse=True)
def quiet_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No reading of this machine's own kernel gets into a test."""
    nothing = tmp_path / "nothing"
    monkeypatch.setattr(health_watch, "HostMachine", lambda: HostMachine(nothing, KernelLog(nothing)))


def settled(watched: HealthWatch) -> DeviceHealth:
    """The report after another poll without a short time limit."""
    watched.poll()
    return watched.report(30.0)


def test_an_ascend_card_behind_a_visible_device_is_found_and_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_in_place(monkeypatch)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
    put_npu_smi(monkeypatch, tmp_path, samples.npu_smi(double=0))
    watched = watch_device(5, NpuDevice(), 0)
    assert watched.report(30.0).differences == ()
    put_npu_smi(monkeypatch, tmp_path, samples.npu_smi(double=2))
    health = settled(watched)
    assert (health.rank, health.device, health.problems) == (5, "npu:0, 1", ())
    assert health.differences == (DOUBLE, TOTAL)
    assert health.readings[0].states["serial number"] == "1025X0000001"


def test_a_tool_that_hangs_at_the_incident_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_in_place(monkeypatch)
    put_npu_smi(monkeypatch, tmp_path, samples.npu_smi())
    watched = watch_device(5, NpuDevice(), 1)
    watched.report(30.0)
    monkeypatch.setattr(ascend, "TOOL_SECONDS", 0.3)
    put_npu_smi(monkeypatch, tmp_path, {"-m": HANGS})
    began = time.monotonic()
    health = settled(watched)
    assert time.monotonic() - began < 5.0
    assert (health.differences, health.readings) == ((), ())
    assert health.problems == ("npu-smi info -m: no answer within 0.3 s",)


def test_a_driver_that_hangs_from_the_start_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = put_nvml(monkeypatch)
    nvml.blocks = True
    monkeypatch.setattr(polling.Poll.__init__, "__defaults__", (0.5,))
    began = time.monotonic()
    watched = HealthWatch(3, "cuda:0", "", [Nvml(UUID)])
    watched.poll()
    assert time.monotonic() - began < 0.3
    health = watched.report(30.0)
    assert time.monotonic() - began < 3.0
    assert health.problems[0].startswith("NVML: no answer after ")
    assert (health.differences, health.readings) == ((), ())
    nvml.released.set()


def test_a_driver_that_hangs_holds_one_thread_however_many_incidents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = put_nvml(monkeypatch)
    nvml.blocks = True
    watched = HealthWatch(3, "cuda:0", "", [Nvml(UUID)])

    before = set(threading.enumerate())
    for _ in range(4):
        watched.poll()
        health = watched.report(0.1)
    assert [thread.name for thread in set(threading.enumerate()) - before] == ["nanguard-NVML"]
    assert health.problems[0] == "NVML: has hung since an earlier poll"
    nvml.released.set()


def test_problems_of_the_first_poll_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = put_nvml(monkeypatch)
    nvml.why_no_driver = "Driver Not Loaded"
    watched = HealthWatch(3, "cuda:0", "", [Nvml(UUID)])
    watched.report(30.0)
    nvml.why_no_driver, nvml.uncorrected = "", 2
    health = settled(watched)
    assert health.problems == ("at the start: NVML does not start: Driver Not Loaded",)
    assert health.differences == ()


@pytest.mark.parametrize("known", ["0000:3b:00", ""])
def test_an_xid_belongs_to_the_device_with_its_address(
    known: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_nvml(monkeypatch)
    path = tmp_path / "kmsg"
    path.touch()
    with closing(KernelLog(path)) as log:
        watched = HealthWatch(3, "cuda:0", known, [Nvml(UUID), HostMachine(tmp_path / "none", log)])
        watched.report(30.0)
        append(path, XIDS)
        health = settled(watched)
    assert health.differences == (
        HealthDifference("device", "Xid 48, double bit ECC error", "0", "2", "uncorrectable"),
        HealthDifference("device", "Xid 63, row remapping or page retirement recorded", "0", "1", "info"),
    )


def test_an_xid_that_cannot_be_placed_keeps_its_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    with closing(KernelLog(path)) as log:
        watched = HealthWatch(3, "cuda:0", "", [HostMachine(tmp_path / "none", log)])
        append(path, XIDS)
        health = settled(watched)
    assert [one.part for one in health.differences] == ["0000:3b:00", "0000:3b:00", "0000:86:00"]


def test_closing_a_watch_closes_the_kernel_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    log = KernelLog(path)
    monkeypatch.setattr(health_watch, "HostMachine", lambda: HostMachine(tmp_path / "none", log))
    watched = watch_device(0, device_of("cpu"), None)
    assert is_open(path)
    watched.close()
    assert not is_open(path)
    append(path, XIDS)
    assert settled(watched).readings == ()


def is_open(path: Path) -> bool:
    """Whether this process has the file open."""
    return any(str(path) == os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink())


def test_on_the_cpu_only_the_host_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_vendor(*arguments: Any) -> None:
        raise AssertionError("no vendor's tool is asked for a processor")

    monkeypatch.setattr(Nvml, "read", no_vendor)
    health = settled(watch_device(0, device_of("cpu"), None))
    assert (health.device, health.readings, health.problems) == ("cpu", (), ())


START = HealthReading(
    "nvml",
    "device",
    {"ECC errors, corrected, volatile": 4, "ECC errors, uncorrected, volatile": 1},
    {"clocks limited by": "nothing", "temperature": "40 C"},
)


def test_counters_that_grew_and_states_that_changed_worst_first() -> None:
    now = HealthReading(
        "nvml",
        "device",
        {"ECC errors, corrected, volatile": 9, "ECC errors, uncorrected, volatile": 2},
        {"clocks limited by": "power brake", "temperature": "90 C"},
    )
    assert differences((START,), (now,)) == (
        HealthDifference("device", "ECC errors, uncorrected, volatile", "1", "2", "uncorrectable"),
        HealthDifference("device", "ECC errors, corrected, volatile", "4", "9", "corrected"),
        HealthDifference("device", "clocks limited by", "nothing", "power brake", "throttle"),
    )


def test_errors_before_the_run_are_no_difference() -> None:
    assert differences((START,), (START,)) == ()


def test_a_source_without_a_first_reading_is_not_compared() -> None:
    assert differences((), (START,)) == ()


def test_the_kernel_log_counts_from_the_first_poll_on() -> None:
    line = HealthReading("kernel log", "device", {"Xid 48, double bit ECC error": 1}, {})
    new = (HealthDifference("device", "Xid 48, double bit ECC error", "0", "1", "uncorrectable"),)
    assert differences((), (line,)) == new
    assert differences((line,), (line,)) == new


def test_a_device_whose_counters_restarted_has_no_differences() -> None:
    anew = HealthReading("nvml", "device", {"ECC errors, uncorrected, volatile": 0}, {})
    assert differences((START,), (anew,)) == ()
