"""The ranks in their parallel layout: pipeline stages down, replicas across, tensor-parallel ranks inside a cell.

      dp0    dp1-127
pp0   x!x    ~~~
pp1   ...    ...

Replicas that look alike share a column, stages that look alike share a row: sixteen thousand ranks fit on a screen.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from megatron_nanguard.postmortem.rank_table import RankRow, RankState
from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.phrase import ALONGSIDE, joined, phrase
from megatron_nanguard.records.rank_words import rank_list
from megatron_nanguard.report.blocks import Grid, GridMark, Tone
from megatron_nanguard.report.formatting import counted

NUMBERED_WORLD: Final = 64
"""Largest world that is shown rank by rank, with numbers."""
SHOWN_COLUMNS: Final = 16
SHOWN_ROWS: Final = 32
LONGEST_LABEL: Final = 16
"""Indices that are longer than this are counted."""

TONES: Final = {
    RankState.ORIGIN: Tone.WORST,
    RankState.BAD_BEFORE: Tone.BAD,
    RankState.INFECTED: Tone.SPREAD,
    RankState.MISSING: Tone.UNKNOWN,
    RankState.CLEAN: Tone.GOOD,
}
LEGEND: Final = {
    RankState.ORIGIN: phrase("origin"),
    RankState.BAD_BEFORE: phrase("bad before the reduction"),
    RankState.INFECTED: phrase("bad after it only"),
    RankState.MISSING: phrase("nothing known"),
    RankState.CLEAN: phrase("clean"),
}
ALSO: Final = phrase("also bad before the reduction")
"""The same of a rank beside an origin."""
INSIDE: Final = phrase("in a cell: tensor-parallel ranks")
STAGES: Final = phrase("pipeline stages")
REPLICAS: Final = phrase("replicas")
CUT: Final = phrase("shown: {shown} of {all} kinds of {what}, those with the gravest ranks")

Cell = tuple[GridMark, ...]
Key = TypeVar("Key", bound=Hashable)
Group = TypeVar("Group")


class Column(NamedTuple):
    """Where a column stands."""

    dp: int
    cp: int


Cells = Mapping[tuple[int, Column], Cell]


def parallel_grid(rows: Sequence[RankRow], sizes: ParallelSizes) -> Grid | None:
    """Draw the layout; None for a single rank."""
    if len(rows) < 2:
        return None
    cells = _cells(rows)
    stages = sorted({stage for stage, _ in cells})
    everything = sorted({column for _, column in cells})
    across = _alike(everything, lambda one: (one.cp, *(cells.get((stage, one)) for stage in stages)))
    down = _alike(stages, lambda stage: tuple(cells.get((stage, group[0])) for group in across))
    columns = _gravest(across, SHOWN_COLUMNS, lambda group: _tones(cells, stages, group[:1]))
    lines = _gravest(down, SHOWN_ROWS, lambda group: _tones(cells, group[:1], everything))
    experts = {Column(row.coordinates.dp, row.coordinates.cp): row.coordinates.ep for row in rows}
    return Grid(
        columns=tuple(_column_label(group, sizes, experts[group[0]]) for group in columns),
        rows=tuple(
            (_indices("pp", line), tuple(cells.get((line[0], group[0]), ()) for group in columns)) for line in lines
        ),
        legend=tuple((TONES[state], words) for state, words in legend(rows).items()),
        caption=joined(
            ALONGSIDE,
            (INSIDE if sizes.tp > 1 else "", _cut(lines, down, STAGES), _cut(columns, across, REPLICAS)),
        ),
    )


def legend(rows: Sequence[RankRow]) -> dict[RankState, str]:
    """The states that occur, in words, each with its number of ranks: "origin (1 rank)"."""
    counts = Counter(row.state for row in rows)
    words = {**LEGEND, RankState.BAD_BEFORE: ALSO} if counts[RankState.ORIGIN] else LEGEND
    return {
        state: phrase("{state} ({ranks})", state=words[state], ranks=counted(counts[state], "rank"))
        for state in LEGEND
        if counts[state]
    }


def _cells(rows: Sequence[RankRow]) -> Cells:
    """Members of a cell stand in the order of their tensor-parallel ranks; numbered where there are few."""
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


def _alike(keys: Iterable[Key], content: Callable[[Key], Hashable]) -> list[list[Key]]:
    """Keys whose content is the same, in the order of their first."""
    groups: dict[Hashable, list[Key]] = defaultdict(list)
    for key in keys:
        groups[content(key)].append(key)
    return list(groups.values())


def _gravest(groups: list[Group], limit: int, tones: Callable[[Group], set[Tone]]) -> list[Group]:
    """As many groups as there is room for, those with the gravest members, in their order."""
    if len(groups) <= limit:
        return groups
    gravity = list(TONES.values())
    ranked = sorted(range(len(groups)), key=lambda index: min(map(gravity.index, tones(groups[index]))))
    return [groups[index] for index in sorted(ranked[:limit])]


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
