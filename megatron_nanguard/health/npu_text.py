"""What npu-smi prints, as fields; the forms of its versions differ in blocks, tabs and names.

    NPU ID                                   : 1        HBM Double Bit Error Count               : 2
    Chip Count                               : 1        Chip ID                                  : 0

One chip is asked for, but older versions answer for all chips of a card, a block of lines each, with the chip's number
at the block's top or bottom. Newer ones have a single chip per card and no chip numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

COLUMN_GAP: Final = re.compile(r"\s{2,}")
NUMBERING: Final = frozenset({"NPU ID", "Chip Count", "Chip ID"})
"""Fields that say of whom a block tells, not how it is."""
HCCS_COUNTS: Final = ("hccs error count", "hccs retry count")


class Chip(NamedTuple):
    """Where npu-smi finds a device.

    Attributes:
        npu: the card, for ``-i``.
        chip: the chip on it, for ``-c``; empty where cards have one.
    """

    npu: str
    chip: str


def parse_mapping(text: str) -> dict[str, Chip]:
    """The chips by their logic id, from ``npu-smi info -m``; controllers of a card have none.

    Cards of one chip are listed by versions of their own, without a logic id: there it is the physical one.
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
    """The fields that tell of one chip.

    Args:
        text: what npu-smi printed.
        chip: its number, as the tool was asked for it.
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
    """A state that is taken over as it is.

    Attributes:
        name: ours.
        fields: the tool's names for it; versions differ.
        unit: written after the value.
    """

    name: str
    fields: tuple[str, ...]
    unit: str = ""


Values = tuple[dict[str, int], dict[str, str]]
"""Counters and states."""
Reader = Callable[[Mapping[str, str]], Values]
"""Fields into values."""


def read_ecc(fields: Mapping[str, str]) -> Values:
    """Errors and isolated pages of the memories, under the tool's own names."""
    return {name: int(value) for name, value in fields.items() if value.isdigit()}, {}


def read_hccs(fields: Mapping[str, str]) -> Values:
    """Errors of the links between the cards, summed; one number in brackets per link."""
    lower = {name.lower(): value for name, value in fields.items()}
    counted = [name for name in HCCS_COUNTS if name in lower]
    health = lower.get("hccs health status")
    return {name: sum(map(int, re.findall(r"\d+", lower[name]))) for name in counted}, (
        {"hccs health": health} if health else {}
    )


def read_health(fields: Mapping[str, str]) -> Values:
    """The card's own judgement, and the fault codes behind it."""
    judged = fields.get("Health Status") or fields.get("Health")
    codes = fields.get("Error Code")
    states = {"health": judged} if judged else {}
    if codes:
        states["error codes"] = "none" if codes == "NA" else codes.upper().replace("0X", "")
    return {}, states


def read_states(*states: State) -> Reader:
    """A reader of nothing but states."""

    def read(fields: Mapping[str, str]) -> Values:
        found = {}
        for state in states:
            value = next((fields[name] for name in state.fields if fields.get(name, "NA") != "NA"), None)
            if value is not None:
                found[state.name] = value + state.unit
        return {}, found

    return read
