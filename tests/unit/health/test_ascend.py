"""Ascend cards, through a stand-in for npu-smi."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from megatron_nanguard.health import ascend
from megatron_nanguard.health.ascend import NpuSmi, count_chips
from megatron_nanguard.records.machine.health import HealthReading
from tests.unit.health import samples
from tests.unit.health.stand_ins import HANGS, put_npu_smi


def test_all_readings_of_a_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_npu_smi(monkeypatch, tmp_path, samples.npu_smi(double=2))
    answer = NpuSmi("1").read()
    assert answer.problem == ""
    assert answer.readings == (
        HealthReading(
            source="npu-smi",
            part="device",
            counters={
                "HBM Single Bit Error Count": 0,
                "HBM Double Bit Error Count": 2,
                "HBM Single Bit Aggregate Total Err Cnt": 7,
                "HBM Double Bit Aggregate Total Err Cnt": 2,
                "HBM Single Bit Isolated Pages Count": 0,
                "HBM Double Bit Isolated Pages Count": 0,
                "HBM Single Bit Next-Isolated Pages Count": 0,
                "HBM Double Bit Next-Isolated Pages Count": 0,
                "hccs error count": 0,
                "hccs retry count": 3,
            },
            states={
                "health": "OK",
                "error codes": "none",
                "hccs health": "OK",
                "temperature": "49 C",
                "memory": "65536 MB",
                "memory temperature": "52 C",
                "driver": "24.1.0",
                "firmware": "7.5.0.1.129",
                "serial number": "1025X0000001",
                "pci bus": "0000:C1:00.0",
            },
        ),
    )


def test_what_a_card_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_npu_smi(monkeypatch, tmp_path, samples.npu_smi(hccs=samples.NO_HCCS))
    (reading,) = NpuSmi("1").read().readings
    assert not [name for name in (*reading.counters, *reading.states) if name.startswith("hccs")]
    assert reading.states["temperature"] == "49 C"


def test_after_a_call_that_hangs_earlier_readings_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ascend, "TOOL_SECONDS", 0.5)
    put_npu_smi(monkeypatch, tmp_path, {**samples.npu_smi(double=2), "-t health -i 5 -c 0": HANGS})
    began = time.monotonic()
    answer = NpuSmi("1").read()
    assert time.monotonic() - began < 5
    assert answer.problem == "npu-smi info -t health -i 5 -c 0: no answer within 0.5 s"
    assert answer.readings[0].counters["HBM Double Bit Error Count"] == 2
    assert answer.readings[0].states == {}


def test_a_first_call_that_hangs_gives_no_readings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ascend, "TOOL_SECONDS", 0.2)
    put_npu_smi(monkeypatch, tmp_path, {"-m": HANGS})
    assert NpuSmi("0").read() == ((), "npu-smi info -m: no answer within 0.2 s")
    assert count_chips() == "npu-smi info -m: no answer within 0.2 s"


def test_a_host_without_the_tool_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ascend, "SEARCH_PATH", "/nowhere")
    assert NpuSmi("0").read() == ((), "npu-smi is neither on PATH nor in /nowhere")


def test_a_device_that_is_not_listed_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_npu_smi(monkeypatch, tmp_path, samples.npu_smi())
    assert NpuSmi("7").read() == ((), "npu-smi info -m lists no device with logic id 7")
    assert count_chips() == 2
