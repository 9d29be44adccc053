"""Severity of an error, from the name of its counter or state."""

from __future__ import annotations

import re
from typing import Final

from megatron_nanguard.records.machine.health import Severity

WORST_FIRST: Final[tuple[Severity, ...]] = ("uncorrectable", "link", "corrected", "throttle", "info")

COUNTER_WORDS: Final[tuple[tuple[str, Severity], ...]] = (
    (r"^(nvlink|hccs)\b", "link"),
    (r"uncorrect|double[ -]bit|multi[ -]bit|\bUE\b", "uncorrectable"),
    (r"correct|single[ -]bit|\bCE\b", "corrected"),
)
"""First match wins."""

XIDS: Final[dict[int, tuple[str, Severity]]] = {
    48: ("double bit ECC error", "uncorrectable"),
    63: ("row remapping or page retirement recorded", "info"),
    64: ("row remapping or page retirement failed", "uncorrectable"),
    74: ("NVLink error", "link"),
    79: ("GPU has fallen off the bus", "info"),
    92: ("high rate of single bit ECC errors", "corrected"),
    94: ("contained uncorrectable error", "uncorrectable"),
    95: ("uncontained uncorrectable error", "uncorrectable"),
    140: ("unrecovered ECC error", "uncorrectable"),
    171: ("uncorrectable DRAM error", "uncorrectable"),
    172: ("uncorrectable SRAM error", "uncorrectable"),
}
"""Xid events of the driver that indicate hardware faults; others come from programs that crash."""

NPU_MULTI_BIT: Final = frozenset({"80E01801", "80E01809", "80E18402"})
"""Fault codes of Ascend cards for bit errors that the high-bandwidth memory cannot correct."""

UNLIMITED: Final = "nothing"
"""State of clocks without a limit."""

WATCHED_STATES: Final[dict[str, Severity]] = {
    "clocks limited by": "throttle",
    "row remap failure": "uncorrectable",
    "row remap pending": "info",
    "pages to be retired": "info",
    "health": "info",
    "error codes": "info",
    "hccs health": "link",
}
"""States whose change is reported; temperatures and versions are not."""


def name_xid(number: int) -> str:
    """Name of the counter of an Xid: "Xid 48, double bit ECC error"."""
    return f"Xid {number}, {XIDS[number][0]}" if number in XIDS else f"Xid {number}"


def severity_of_counter(name: str) -> Severity:
    """Severity when this counter grows."""
    if xid := re.match(r"Xid (\d+)", name):
        number = int(xid[1])
        return XIDS[number][1] if number in XIDS else "info"
    return next((severity for words, severity in COUNTER_WORDS if re.search(words, name, re.IGNORECASE)), "info")


def severity_of_state(name: str, now: str) -> Severity | None:
    """Severity when a state changes to this value; None when that is not reported."""
    if name == "clocks limited by" and now == UNLIMITED:
        return None
    if name == "error codes" and NPU_MULTI_BIT & set(now.split()):
        return "uncorrectable"
    return WATCHED_STATES.get(name)
