"""The whole text of the section on hardware readings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megatron_nanguard.records.machine.health import DeviceHealth, HealthDifference, HealthReading
from megatron_nanguard.records.postmortem import RankSets
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.rendering.layout import plain_text
from megatron_nanguard.report.sections.health import describe
from tests.unit.diagnosis.factories import origin
from tests.unit.factories import incident
from tests.unit.hardware import CORRECTED, LOST_DATA, SLOW, health

READING = HealthReading(
    "nvml", "device", {"ECC errors": 4, "NVLink errors": 0}, {"temperature": "61 C", "clocks limited by": "nothing"}
)


def told_by(rank: int, *changes: HealthDifference) -> DeviceHealth:
    return health(rank, *changes, readings=(READING,))


def text_of(**changes: Any) -> str:
    changes = {"ranks": RankSets((5,), (0, 1), (2, 3)), "origin": (origin(),), **changes}
    block = describe(OpenedIncident(incident(**changes), Path("/run")))
    return "" if block is None else plain_text([block])


def test_changes_come_first_then_states_and_problems() -> None:
    told = (
        told_by(5, LOST_DATA, CORRECTED),
        told_by(2),
        health(3, SLOW, readings=(), problems=("npu-smi info -t ecc -i 1: no answer within 3 s",)),
    )
    assert text_of(health=told) == (
        "Hardware readings\n"
        "  The hardware under rank 5 reports an uncorrectable error since the start of the run.\n"
        "  rank  of      what                               at the start  now          means\n"
        "  5     device  ECC errors, uncorrected, volatile  0             2            uncorrectable\n"
        "  5     device  ECC errors, corrected, volatile    4             9            corrected\n"
        "  3     device  clocks limited by                  nothing       power brake  throttle\n"
        "  rank 5, node1, cuda:5, GPU-5: temperature 61 C, clocks limited by nothing; counters: ECC errors 4\n"
        "  rank 2, healthy peer, node1, cuda:2, GPU-2: temperature 61 C, clocks limited by nothing; "
        "counters: ECC errors 4\n"
        "  rank 3, node1, cuda:3, GPU-3: not readable: npu-smi info -t ecc -i 1: no answer within 3 s\n"
    )


def test_devices_without_an_error_are_not_called_healthy() -> None:
    assert text_of(health=(told_by(5),)) == (
        "Hardware readings\n"
        "  No device that was read reports a new uncorrectable error; a device without one may still be faulty.\n"
        "  rank 5, node1, cuda:5, GPU-5: temperature 61 C, clocks limited by nothing; counters: ECC errors 4\n"
    )


def test_a_tool_that_hangs_has_a_line() -> None:
    told = (health(5, readings=(), problems=("NVML: no answer after 10 s",)),)
    assert text_of(health=told) == (
        "Hardware readings\n  rank 5, node1, cuda:5, GPU-5: not readable: NVML: no answer after 10 s\n"
    )


def test_many_changes_are_counted() -> None:
    many = [HealthDifference("device", f"Xid {number}", "0", "1", "info") for number in range(18)]
    assert "  ... and 2 more changes\n" in text_of(health=(health(5, *many),))


def test_of_many_ranks_the_first_and_the_healthy_peer_are_shown() -> None:
    told = (told_by(5, LOST_DATA), *(told_by(rank, SLOW) for rank in range(10, 30)), told_by(2))
    lines = [line for line in text_of(health=told).splitlines() if line.startswith("  rank ") and "cuda" in line]
    assert [line.split()[1] for line in lines] == ["5,", "10,", "11,", "12,", "13,", "14,", "15,", "2,"]


def test_without_readings_or_problems_there_is_no_section() -> None:
    assert text_of() == ""
    assert text_of(health=(health(5, readings=()),)) == ""
