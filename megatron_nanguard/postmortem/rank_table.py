"""One row per rank for the pictures of a report, from the files of the ranks and the merged incident.

Files may be missing. A rank without a file has its coordinates from the layout and its state from the exchange; its
other columns are empty.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from megatron_nanguard.postmortem.rank_files import RankFiles, Track, check_sizes, untracked
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.incident import Incident, Infected
from megatron_nanguard.records.machine.device import DeviceFacts
from megatron_nanguard.records.postmortem import Microbatch, Postmortem

LISTED_UNKNOWN: Final = 4096


class RankState(enum.Enum):
    """What happened to a rank, the worst first.

    Attributes:
        ORIGIN: the walk back from bad gradients ends on this rank.
        BAD_BEFORE: its gradients or loss were bad before the reduction.
        INFECTED: its gradients became bad through communication alone.
        MISSING: unknown, as neither the exchange nor a file says anything about this rank.
        CLEAN: nothing bad was seen on it.
    """

    ORIGIN = "origin"
    BAD_BEFORE = "bad_before"
    INFECTED = "infected"
    MISSING = "missing"
    CLEAN = "clean"


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One rank.

    Attributes:
        rank: global rank.
        coordinates: its place in the parallel layout.
        label: short form of the coordinates, such as "tp1pp1dp0".
        state: what happened to it.
        has_file: its file was read; if not, the columns from `host` to `notes` are empty.
        host: host name.
        device: product name and number on the host, if it has one: "NVIDIA H200 (3)".
        norm: norm over its own gradients, before the reduction.
        norm_by_layer: norms of its own gradients per layer, before the reduction, in forward order.
        reduced_norm: norm of the gradients that its optimizer would have consumed.
        bad_by_layer: number of bad parameters per layer, before the reduction.
        microbatches: its micro-batches with their losses.
        notes: the notes in its file.
        infected: the communication that infected it; None if this is not known.
    """

    rank: int
    coordinates: Coordinates
    label: str
    state: RankState
    has_file: bool = False
    host: str = ""
    device: str = ""
    norm: float | None = None
    norm_by_layer: dict[str, float | None] = field(default_factory=dict)
    reduced_norm: float | None = None
    bad_by_layer: dict[str, int] = field(default_factory=dict)
    microbatches: tuple[Microbatch, ...] = ()
    notes: tuple[str, ...] = ()
    infected: Infected | None = None


def rank_table(incident: Incident, directory: Path, track: Track = untracked) -> tuple[RankRow, ...]:
    """Read the files of the ranks and make one row per rank of the world, in order.

    Args:
        incident: the merged incident.
        directory: where the files of its ranks are; missing or unreadable files are skipped.
        track: shows the progress of reading.
    Raises:
        PostmortemError: a parallel size of the incident is out of range.
    """
    check_sizes(incident.sizes, str(directory))
    table = RankTable()
    for postmortem in RankFiles(directory, track) if directory.is_dir() else ():
        table.add(postmortem)
    return table.rows(incident)


class RankTable:
    """Collects the rows of the ranks while their post-mortems are read, for a report or for a merge."""

    def __init__(self) -> None:
        self._rows: dict[int, RankRow] = {}

    def add(self, postmortem: Postmortem) -> None:
        """Make the row of one rank from its file."""
        self._rows[postmortem.coordinates.rank] = _with_file(postmortem)

    def rows(self, incident: Incident) -> tuple[RankRow, ...]:
        """Return one row per rank of the world, in order, with states and infections from the incident.

        Of the ranks of which nothing is known only the first few have a row: a damaged file may claim a million.
        """
        states = _states(incident)
        infected = {infection.rank: infection for infection in incident.infected}
        world = range(incident.sizes.world)
        without_file = [rank for rank in world if rank in states and rank not in self._rows]
        unknown = (rank for rank in world if rank not in states and rank not in self._rows)
        for rank in itertools.chain(without_file, itertools.islice(unknown, LISTED_UNKNOWN)):
            self._rows[rank] = _without_file(rank, incident.sizes)
        return tuple(
            replace(
                row,
                state=states.get(rank, RankState.CLEAN if row.has_file else RankState.MISSING),
                infected=infected.get(rank),
            )
            for rank, row in sorted(self._rows.items())
        )


def _states(incident: Incident) -> dict[int, RankState]:
    """Map each rank of the exchange to its state; being an origin overrides the set that the rank is in."""
    sets = incident.ranks
    return {
        **dict.fromkeys(sets.clean, RankState.CLEAN),
        **dict.fromkeys(sets.bad_after_only, RankState.INFECTED),
        **dict.fromkeys(sets.bad_before, RankState.BAD_BEFORE),
        **{rank: RankState.ORIGIN for origin in incident.origin for rank in origin.members},
    }


def _without_file(rank: int, sizes: ParallelSizes) -> RankRow:
    place = Coordinates.in_default_order(rank, sizes)
    return RankRow(rank=rank, coordinates=place, label=place.label(sizes), state=RankState.MISSING)


def _with_file(postmortem: Postmortem) -> RankRow:
    place = postmortem.coordinates
    return RankRow(
        rank=place.rank,
        coordinates=place,
        label=place.label(postmortem.sizes),
        state=RankState.CLEAN,
        has_file=True,
        host=postmortem.host,
        device=_device(postmortem.device),
        norm=postmortem.local.norm,
        norm_by_layer=postmortem.local.norm_by_layer,
        reduced_norm=postmortem.reduced.norm,
        bad_by_layer=postmortem.local.by_layer,
        microbatches=postmortem.microbatches,
        notes=postmortem.notes,
    )


def _device(facts: DeviceFacts) -> str:
    return facts.name if facts.index is None else f"{facts.name} ({facts.index})"
