"""Severity of counters and states, from their names."""

from __future__ import annotations

import pytest

from megatron_nanguard.health.severity import severity_of_counter, severity_of_state


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("ECC errors, uncorrected, volatile", "uncorrectable"),
        ("ECC errors, corrected, aggregate", "corrected"),
        ("remapped rows, uncorrectable", "uncorrectable"),
        ("remapped rows, correctable", "corrected"),
        ("retired pages, double bit", "uncorrectable"),
        ("HBM Double Bit Error Count", "uncorrectable"),
        ("HBM Single Bit Aggregate Total Err Cnt", "corrected"),
        ("Double-bit Error Count", "uncorrectable"),
        ("HBM Isolated Page Count", "info"),
        ("hccs error count", "link"),
        ("NVLink CRC errors, data", "link"),
        ("Xid 48, double bit ECC error", "uncorrectable"),
        ("Xid 74, NVLink error", "link"),
        ("Xid 92, high rate of single bit ECC errors", "corrected"),
        ("Xid 13", "info"),
        ("EDAC UE, uncorrectable memory error", "uncorrectable"),
        ("EDAC CE, memory error", "corrected"),
        ("memory errors, corrected", "corrected"),
        ("firmware: uncorrected hardware error", "uncorrectable"),
        ("machine check exception, uncorrected", "uncorrectable"),
    ],
)
def test_severity_of_a_counter(name: str, severity: str) -> None:
    assert severity_of_counter(name) == severity


@pytest.mark.parametrize(
    ("name", "now", "severity"),
    [
        ("clocks limited by", "power brake", "throttle"),
        ("clocks limited by", "nothing", None),
        ("row remap failure", "yes", "uncorrectable"),
        ("row remap pending", "yes", "info"),
        ("health", "Alarm", "info"),
        ("error codes", "81078603", "info"),
        ("error codes", "81078603 80E01801", "uncorrectable"),
        ("hccs health", "NOK", "link"),
        ("temperature", "93 C", None),
        ("driver", "550.54.15", None),
    ],
)
def test_severity_of_a_state(name: str, now: str, severity: str | None) -> None:
    assert severity_of_state(name, now) == severity
