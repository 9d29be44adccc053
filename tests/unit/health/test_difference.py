"""What changed between two looks."""

from __future__ import annotations

from megatron_nanguard.health.difference import differences
from megatron_nanguard.records.health import HealthDifference, HealthReading

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


def test_old_errors_are_none_of_this_run() -> None:
    assert differences((START,), (START,)) == ()


def test_a_source_without_a_first_reading_is_not_compared() -> None:
    assert differences((), (START,)) == ()


def test_the_kernel_log_counts_from_the_first_look_on() -> None:
    line = HealthReading("kernel log", "device", {"Xid 48, double bit ECC error": 1}, {})
    new = (HealthDifference("device", "Xid 48, double bit ECC error", "0", "1", "uncorrectable"),)
    assert differences((), (line,)) == new
    assert differences((line,), (line,)) == new


def test_a_device_whose_counters_began_anew_tells_nothing() -> None:
    anew = HealthReading("nvml", "device", {"ECC errors, uncorrected, volatile": 0}, {})
    assert differences((START,), (anew,)) == ()
