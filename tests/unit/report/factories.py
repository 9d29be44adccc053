"""Opened incidents for the tests of the sections, with a row per rank where a test needs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron_nanguard.postmortem.rank_table import RankRow, RankState
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.report import blocks_of
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.opened_incident import OpenedIncident, open_incident
from megatron_nanguard.report.rendering.layout import plain_text
from megatron_nanguard.report.sections import Section
from tests.unit.factories import SIZES, incident

DIRECTORY = Path("/data/DIR")

# The demo: rank 5 is the origin, its replica was bad before the reduction, the other one after it.
DEMO = {
    0: RankState.BAD_BEFORE,
    1: RankState.BAD_BEFORE,
    2: RankState.INFECTED,
    3: RankState.INFECTED,
    4: RankState.BAD_BEFORE,
    5: RankState.ORIGIN,
    6: RankState.INFECTED,
    7: RankState.INFECTED,
}


def report_text(incident: Incident, directory: Path, lang: str = "en") -> str:
    """The report of an incident as plain text; its files are in the directory."""
    return plain_text(blocks_of(open_incident(incident, directory), lang))


def row(rank: int, state: RankState = RankState.CLEAN, sizes: ParallelSizes = SIZES, **changes: Any) -> RankRow:
    """The row of a rank in Megatron's default order whose file was read."""
    place = Coordinates.in_default_order(rank, sizes)
    known: dict[str, Any] = {"has_file": True, "host": "node1", "device": "Test CPU", **changes}
    return RankRow(rank=rank, coordinates=place, label=place.label(sizes), state=state, **known)


def demo_rows() -> tuple[RankRow, ...]:
    """A row per rank of the demo."""
    return tuple(row(rank, state) for rank, state in DEMO.items())


def opened_incident(record: Incident | None = None, rows: Sequence[RankRow] = (), **changes: Any) -> OpenedIncident:
    """The smallest incident with the changes of a test."""
    return OpenedIncident(record or incident(**changes), DIRECTORY, tuple(rows))


def described(section: Section, opened: OpenedIncident) -> Block:
    """The block of a section, which must not be None."""
    block = section(opened)
    assert block is not None
    return block


def bundled(directory: Path) -> Path:
    """A directory with the bundle of a suspect call that can be run."""
    (directory / "bundle").mkdir()
    for name in ("call.json", "tensors.safetensors"):
        (directory / "bundle" / name).touch()
    return directory
