"""One row per rank for the pictures of a report, joined from the files of the ranks and the merged incident.

Any subset of the files will do: what a rank's file would tell is empty where there is none, its place is told from the
layout, and what happened to it from the exchange.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from pathlib import Path

from megatron_nanguard.postmortem.range_checks import check_sizes
from megatron_nanguard.postmortem.rank_files import RankFiles, Track, untracked
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.device import DeviceFacts
from megatron_nanguard.records.incident import Incident, Infected
from megatron_nanguard.records.postmortem import Microbatch, Postmortem


class RankState(enum.Enum):
    """What happened to a rank, the worst first.

    Attributes:
        ORIGIN: a walk back from bad gradients ends here.
        BAD_BEFORE: bad before the reduction.
        INFECTED: bad through communication alone.
        MISSING: neither the exchange nor a file tells.
        CLEAN: nothing bad was seen.
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
        coordinates: where it stands.
        label: its place in a word, such as "tp1pp1dp0".
        state: what happened to it.
        has_file: its file was read; what follows is empty otherwise.
        host: host name.
        device: product name, with its number on the host where it has one: "NVIDIA H200 (3)".
        norm: norm over its own gradients, before the reduction.
        norm_by_layer: the same per layer, in forward order.
        reduced_norm: norm of what the optimizer would have consumed there.
        bad_by_layer: number of bad parameters per layer, before the reduction.
        microbatches: losses of the micro-batches.
        notes: what its file says besides.
        infected: by what it was infected; null where that is not known.
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
    """One row per rank of the world, in order.

    Args:
        incident: the merged incident.
        directory: where the files of its ranks are; those that are gone or cannot be read are done without.
        track: told of every file that is read.
    Raises:
        PostmortemError: the incident's layout is none.
    """
    check_sizes(incident.sizes, str(directory))
    table = RankTable()
    for postmortem in RankFiles(directory, track) if directory.is_dir() else ():
        table.add(postmortem)
    return table.rows(incident)


class RankTable:
    """The rows, made while the files are read for whatever purpose."""

    def __init__(self) -> None:
        self._rows: dict[int, RankRow] = {}

    def add(self, postmortem: Postmortem) -> None:
        """Keep what a row tells of one rank."""
        self._rows[postmortem.coordinates.rank] = _with_file(postmortem)

    def rows(self, incident: Incident) -> tuple[RankRow, ...]:
        """One row per rank of the world, in order, with what the incident tells of it."""
        states = _states(incident)
        infected = {one.rank: one for one in incident.infected}
        unknown = {rank: _without_file(rank, incident.sizes) for rank in range(incident.sizes.world)}
        rows = {**unknown, **self._rows}
        return tuple(
            replace(
                row,
                state=states.get(rank, RankState.CLEAN if row.has_file else RankState.MISSING),
                infected=infected.get(rank),
            )
            for rank, row in sorted(rows.items())
        )


def _states(incident: Incident) -> dict[int, RankState]:
    """State of every rank that the exchange knew of; the origin outweighs its set."""
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
