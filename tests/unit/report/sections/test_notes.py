"""What else there is to know."""

from __future__ import annotations

from megatron_nanguard.records.incident import DeviceCount
from megatron_nanguard.report.sections import notes
from tests.unit.report.factories import described, opened_incident


def test_without_notes_there_is_no_section() -> None:
    assert notes.describe(opened_incident(devices=(DeviceCount("npu", "Test NPU", "inf_nan", 8),))) is None


def test_a_blind_device_is_warned_of() -> None:
    blind = opened_incident(devices=(DeviceCount("npu", "Test NPU", "saturation", 8),), notes=("rank 3: a note",))

    assert described(notes.describe, blind).notes == ("rank 3: a note", notes.SATURATION)
