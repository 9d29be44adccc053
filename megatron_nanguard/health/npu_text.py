"""Parses the output of npu-smi; its versions differ in blocks, tabs and names of fields.

    NPU ID                                   : 1        HBM Double Bit Error Count               : 2
    Chip Count                               : 1        Chip ID                                  : 0

Older versions answer for all chips of a card when asked for one: a block of lines for each chip, with the chip's number
at the top or bottom of the block. Newer versions have a single chip per card and no chip numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

COLUMN_GAP: Final = re.compile(r"\s{2,}")
NUMBERING: Final = frozenset({"NPU ID", "Chip Count", "Chip ID"})
"""Fields that number a block; all others are readings."""
HCCS_COUNTS: Final = ("hccs error count", "hccs retry count")


class Chip(NamedTuple):
    """A device, as npu-smi numbers it.

    Attributes:
        npu: card, for ``-i``.
        chip: chip on the card, for ``-c``; empty where a card has a single chip.
    """

    npu: str
    chip: str


def parse_mapping(text: str) -> dict[str, Chip]:
    """Logic id to chip, from ``npu-smi info -m``; controllers on a card have no logic id and are left out.

    Versions for cards with a single chip print no logic id; the physical id takes its place.
    """
    lines = [COLUMN_GAP.split(line.strip()) for line in text.splitlines()]
    heads = [index for index, cells in enumerate(lines) if "NPU ID" in cells]
    if not heads:
        return {}
    head = lines[heads[0]]
    key = "Chip Logic ID" if "Chip Logic ID" in head else "Chip Phy-ID"
    rows = [dict(zip(head, cells, strict=False)) for cells in lines[heads[0] + 1 :]]
    return {row[key]: Chip(row["NPU ID"], row.get("Chip ID", "")) for row in rows if row.get(key, "").isdigit()}


def parse_fields(text: str, chip: str = "") -> dict[str, str]:
    """Fields of one chip.

    Args:
        text: output of npu-smi.
        chip: number of the chip; empty for a card with a single chip.
    """
    found: dict[str, str] = {}
    for block in _blocks(text):
        is_of_chip = not chip or block.get("Chip ID", chip) == chip
        if is_of_chip and block.get("Chip Name", "").lower() != "mcu":
            found.update((name, value) for name, value in block.items() if name not in NUMBERING)
    return found


def _blocks(text: str) -> Iterator[dict[str, str]]:
    for block in re.split(r"\n\s*\n", text):
        pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
        yield {name.strip(): value.strip() for name, _, value in pairs}


class State(NamedTuple):
    """A state whose text is copied.

    Attributes:
        name: in our readings.
        fields: names in the tool's output, which differ between versions.
        unit: written after the value.
    """

    name: str
    fields: tuple[str, ...]
    unit: str = ""


Values = tuple[dict[str, int], dict[str, str]]
"""Counters and states."""
Reader = Callable[[Mapping[str, str]], Values]
"""Turns fields into values."""


def read_ecc(fields: Mapping[str, str]) -> Values:
    """Memory errors and isolated pages, with the tool's own names."""
    return {name: int(value) for name, value in fields.items() if value.isdigit()}, {}


def read_hccs(fields: Mapping[str, str]) -> Values:
    """Errors summed over the links between cards; the tool prints one number per link, in brackets."""
    lower = {name.lower(): value for name, value in fields.items()}
    counted = [name for name in HCCS_COUNTS if name in lower]
    health = lower.get("hccs health status")
    return {name: sum(map(int, re.findall(r"\d+", lower[name]))) for name in counted}, (
        {"hccs health": health} if health else {}
    )


def read_health(fields: Mapping[str, str]) -> Values:
    """Health as the card reports it, with its fault codes."""
    judged = fields.get("Health Status") or fields.get("Health")
    codes = fields.get("Error Code")
    states = {"health": judged} if judged else {}
    if codes:
        states["error codes"] = "none" if codes == "NA" else codes.upper().replace("0X", "")
    return {}, states


def read_states(*states: State) -> Reader:
    """Make a reader of states."""

    def read(fields: Mapping[str, str]) -> Values:
        found = {}
        for state in states:
            value = next((fields[name] for name in state.fields if fields.get(name, "NA") != "NA"), None)
            if value is not None:
                found[state.name] = value + state.unit
        return {}, found

    return read
