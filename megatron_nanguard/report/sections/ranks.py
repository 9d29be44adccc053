"""The ranks: which were bad before the reduction, which became bad by it, and where they are in the parallel layout.

      dp0    dp1-127
pp0   x!x    ~~~
pp1   ...    ...

Pipeline stages go down, replicas go across, tensor-parallel ranks are side by side in a cell. Equal replicas share a
column and equal stages share a row, so that sixteen thousand ranks fit on a screen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from megatron_nanguard.postmortem.rank_table import RankRow
from megatron_nanguard.records.coordinates import ParallelSizes, RankGroup
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import ALONGSIDE, joined, name_ranks, opening, phrase, rank_list
from megatron_nanguard.report.blocks import Block, Grid, GridMark, Tone
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.rank_states import TONES, keep_worst, legend

SHOWN_PATHS: Final = 8
INFECTED: Final = phrase("{ranks}: infected by {sources} through {by} ({group})")
NUMBERED_WORLD: Final = 64
"""Largest number of ranks that are shown with their numbers."""
SHOWN_COLUMNS: Final = 16
SHOWN_ROWS: Final = 32
LONGEST_LABEL: Final = 16
"""Longest list of indices in characters; a longer one is shown as a count."""

CUT: Final = phrase("shown: {shown} of {all} kinds of {what}, those with the worst ranks")

Cell = tuple[GridMark, ...]
Key = TypeVar("Key", bound=Hashable)


class Column(NamedTuple):
    """The replica that a column shows."""

    dp: int
    cp: int


Cells = Mapping[tuple[int, Column], Cell]


def describe(opened: OpenedIncident) -> Block:
    """Show the layout as a grid, list the three sets of ranks, and say which rank infected which."""
    incident = opened.incident
    ranks = incident.ranks
    # Where no rank was bad before the reduction, all failing groups became bad by it.
    infected_groups = incident.infected_groups or (() if ranks.bad_before else incident.groups)
    rows = [
        (phrase("bad before the reduction"), _words(ranks.bad_before, incident.groups)),
        (phrase("bad after it only"), _words(ranks.bad_after_only, infected_groups)),
        (phrase("clean"), rank_list(ranks.clean)),
    ]
    if incident.missing_ranks:
        rows.append((phrase("no readable file"), rank_list(incident.missing_ranks)))
    return Block(
        phrase("Ranks"),
        # Without an origin the verdict shows the summary already. The verdict names the step.
        text=(opening(incident.summary.removeprefix(f"Step {incident.step}: ")),) if incident.origin else (),
        grid=parallel_grid(opened.rows, incident.sizes),
        rows=tuple(rows),
        # With an origin, the section on propagation shows the infections.
        notes=() if incident.origin else _paths(incident),
    )


def parallel_grid(rows: Sequence[RankRow], sizes: ParallelSizes) -> Grid | None:
    """Arrange the ranks in a grid of their parallel layout; None for a single rank.

    Args:
        rows: one per rank.
        sizes: the parallel layout.
    """
    if len(rows) < 2:
        return None
    cells = _cells(rows)
    stages = sorted({stage for stage, _ in cells})
    everything = sorted({column for _, column in cells})
    across = _equal_groups(everything, lambda one: (one.cp, *(cells.get((stage, one)) for stage in stages)))
    down = _equal_groups(stages, lambda stage: tuple(cells.get((stage, group[0])) for group in across))
    columns = keep_worst(across, SHOWN_COLUMNS, lambda group: _tones(cells, stages, group[:1]))
    lines = keep_worst(down, SHOWN_ROWS, lambda group: _tones(cells, group[:1], everything))
    experts = {Column(row.coordinates.dp, row.coordinates.cp): row.coordinates.ep for row in rows}
    return Grid(
        columns=tuple(_column_label(group, sizes, experts[group[0]]) for group in columns),
        rows=tuple(
            (_indices("pp", line), tuple(cells.get((line[0], group[0]), ()) for group in columns)) for line in lines
        ),
        legend=tuple((TONES[state], words) for state, words in legend(rows).items()),
        caption=joined(
            ALONGSIDE,
            (
                phrase("in a cell: tensor-parallel ranks") if sizes.tp > 1 else "",
                _cut(lines, down, phrase("pipeline stages")),
                _cut(columns, across, phrase("replicas")),
            ),
        ),
    )


def _words(ranks: Sequence[int], groups: Sequence[RankGroup]) -> str:
    """Write a set of ranks and what it is in the layout: "0, 1, 4, 5: data-parallel replica 0"."""
    words = joined(ALONGSIDE, (group.words for group in groups))
    if not ranks or not words:
        return rank_list(ranks)
    # The words for a single rank begin with its number.
    if words.startswith(name_ranks(ranks)):
        return words
    return phrase("{ranks}: {words}", ranks=rank_list(ranks), words=words)


def _paths(incident: Incident) -> tuple[str, ...]:
    """Write one line per communication and source, with all ranks that it infected."""
    paths: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for infected in incident.infected:
        paths.setdefault((infected.by, infected.group, infected.from_ranks), []).append(infected.rank)
    lines = [_path(by, group, sources, sorted(ranks)) for (by, group, sources), ranks in paths.items()]
    more = len(lines[SHOWN_PATHS:])
    return (*lines[:SHOWN_PATHS], *([phrase("... and {more} more paths of infection", more=more)] if more else []))


def _path(by: str, group: str, sources: Sequence[int], ranks: Sequence[int]) -> str:
    who = name_ranks(ranks)
    if not sources:
        return phrase("{ranks}: infected on an unknown path", ranks=who)
    return INFECTED.format(ranks=who, sources=name_ranks(sources), by=by, group=group)


def _cells(rows: Sequence[RankRow]) -> Cells:
    """Make the marks of each cell in the order of the tensor-parallel ranks, with rank numbers in a small run."""
    cells: dict[tuple[int, Column], list[RankRow]] = defaultdict(list)
    for row in rows:
        place = row.coordinates
        cells[place.pp, Column(place.dp, place.cp)].append(row)
    is_numbered = len(rows) <= NUMBERED_WORLD
    digits = len(str(max(row.rank for row in rows)))
    return {
        key: tuple(
            GridMark(TONES[row.state], str(row.rank).rjust(digits) if is_numbered else "")
            for row in sorted(members, key=lambda row: row.coordinates.tp)
        )
        for key, members in cells.items()
    }


def _equal_groups(keys: Iterable[Key], content: Callable[[Key], Hashable]) -> list[list[Key]]:
    """Put keys with equal content into one group; the groups are in the order of their first keys."""
    groups: dict[Hashable, list[Key]] = defaultdict(list)
    for key in keys:
        groups[content(key)].append(key)
    return list(groups.values())


def _tones(cells: Cells, stages: Iterable[int], columns: Sequence[Column]) -> set[Tone]:
    return {mark.tone for stage in stages for column in columns for mark in cells.get((stage, column), ())}


def _column_label(group: Sequence[Column], sizes: ParallelSizes, ep: int) -> str:
    parts = [_indices("dp", [column.dp for column in group])]
    if sizes.cp > 1:
        parts.append(f"cp{group[0].cp}")
    if sizes.ep > 1 and len(group) == 1:
        parts.append(f"ep{ep}")
    return " ".join(parts)


def _indices(axis: str, indices: Sequence[int]) -> str:
    words = rank_list(indices)
    return f"{axis}{words}" if len(words) <= LONGEST_LABEL else f"{len(indices)} {axis}"


def _cut(shown: Sequence[object], everything: Sequence[object], what: str) -> str:
    return CUT.format(shown=len(shown), all=len(everything), what=what) if len(shown) < len(everything) else ""
