"""Arrange the ranks in a grid: a row per replica, a column per pipeline stage, tensor-parallel ranks side by side.

Up to a thousand ranks have a cell each. In a larger run a cell is a pipeline stage of a replica, and equal neighbouring
replicas share a row; the page lists the ranks of a cell that is clicked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from megatron_nanguard.postmortem.rank_table import RankRow, RankState
from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.phrase import FOLLOWED, LISTED, joined, phrase, rank_list, runs_of
from megatron_nanguard.report.formatting import as_sentence
from megatron_nanguard.report.rank_states import NAMES, TONES, keep_worst, legend

NUMBERED_RANKS: Final = 64
SINGLE_RANKS: Final = 1024
SHOWN_ROWS: Final = 48
USE: Final = phrase("Click a cell, or move with the arrow keys and press Enter.")
FOLDED: Final = phrase("A cell is a stage of the replicas named on its left, in the colour of its worst rank.")
BESIDE: Final = {
    (True, True): phrase("context- and tensor-parallel ranks side by side"),
    (True, False): phrase("context-parallel ranks side by side"),
    (False, True): phrase("tensor-parallel ranks side by side"),
    (False, False): "",
}
"""What is side by side, by whether context parallelism and tensor parallelism are in use."""
NARROW_CELLS: Final = 14
"""Cells of the widest row that leaves room for the chosen rank beside the grid; folded cells are twice as wide."""

Replicas = dict[int, dict[int, list[RankRow]]]
"""Ranks by replica and pipeline stage."""


@dataclass(frozen=True)
class LegendEntry:
    """One line of the legend.

    Attributes:
        state: a state that occurs.
        symbol: its sign.
        words: its name, and how many ranks are in it.
    """

    state: RankState
    symbol: str
    words: str


@dataclass(frozen=True)
class GridCell:
    """One button of the grid.

    Attributes:
        ranks: the ranks of the cell, such as "0-7,16-23".
        state: the worst state among them.
        symbol: the sign of that state.
        text: the rank where there is room for it; of several ranks, how many are in that state.
        words: description of the cell for screen readers and the tooltip.
    """

    ranks: str
    state: RankState
    symbol: str
    text: str
    words: str


@dataclass(frozen=True)
class GridRow:
    """One replica, or several equal ones.

    Attributes:
        name: name of the replicas, such as "dp 0", or "dp 3-127".
        stages: the cells of each pipeline stage.
    """

    name: str
    stages: tuple[tuple[GridCell, ...], ...]


@dataclass(frozen=True)
class RankGrid:
    """The whole grid.

    Attributes:
        how: a sentence on how to read it.
        stages: names of the columns; empty where there is one pipeline stage.
        rows: the rows from the first replica to the last.
        legend: the states that occur.
        notes: what the grid leaves out.
        is_wide: whether it needs the whole width of the page.
    """

    how: str
    stages: tuple[str, ...]
    rows: tuple[GridRow, ...]
    legend: tuple[LegendEntry, ...]
    notes: tuple[str, ...]
    is_wide: bool


def parallel_grid(table: Sequence[RankRow], sizes: ParallelSizes) -> RankGrid:
    """Arrange the ranks in the rows and columns of a grid.

    Args:
        table: one row per rank.
        sizes: the parallel layout.
    """
    inside = [row for row in table if _is_inside(row, sizes)]
    replicas: Replicas = defaultdict(lambda: defaultdict(list))
    for row in inside:
        replicas[row.coordinates.dp][row.coordinates.pp].append(row)
    stages = sorted({row.coordinates.pp for row in inside})
    is_folded = len(inside) > SINGLE_RANKS
    if is_folded:
        rows = list(_folded(replicas, stages))
        shown = keep_worst(rows, SHOWN_ROWS, lambda row: (TONES[cell.state] for stage in row.stages for cell in stage))
    else:
        rows = shown = list(_single(replicas, stages, is_numbered=len(inside) <= NUMBERED_RANKS))
    return RankGrid(
        how=joined(FOLLOWED, (FOLDED if is_folded else _how(sizes), USE)),
        stages=tuple(f"pp {stage}" for stage in stages) if sizes.pp > 1 else (),
        rows=tuple(shown),
        legend=tuple(LegendEntry(state, TONES[state].value, words) for state, words in legend(inside).items()),
        notes=tuple(_notes([row.rank for row in table if not _is_inside(row, sizes)], len(rows) - len(shown))),
        is_wide=any(sum(map(len, row.stages)) > (NARROW_CELLS // 2 if is_folded else NARROW_CELLS) for row in shown),
    )


def _is_inside(row: RankRow, sizes: ParallelSizes) -> bool:
    """Whether a rank is part of the layout; a trainer may keep ranks that do not train."""
    return row.coordinates.pp < sizes.pp and row.coordinates.dp < sizes.dp


def _how(sizes: ParallelSizes) -> str:
    directions = (
        phrase("data-parallel replicas downwards") if sizes.dp > 1 else "",
        phrase("pipeline stages across") if sizes.pp > 1 else "",
        BESIDE[sizes.cp > 1, sizes.tp > 1],
    )
    words = joined(LISTED, directions)
    return as_sentence(words) if words else ""


def _notes(outside: Sequence[int], left_out: int) -> Iterator[str]:
    if left_out:
        yield phrase("{number} more rows of replicas are not shown.", number=left_out)
    if outside:
        yield phrase("Ranks without a place in the layout: {ranks}.", ranks=rank_list(outside))


def _single(replicas: Replicas, columns: Sequence[int], *, is_numbered: bool) -> Iterator[GridRow]:
    for replica, stages in sorted(replicas.items()):
        members = (sorted(stages[stage], key=lambda row: (row.coordinates.cp, row.coordinates.tp)) for stage in columns)
        cells = tuple(tuple(_one(row, is_numbered=is_numbered) for row in ranks) for ranks in members)
        yield GridRow(f"dp {replica}" if len(replicas) > 1 else "", cells)


def _folded(replicas: Replicas, columns: Sequence[int]) -> Iterator[GridRow]:
    """Make the rows of a large run: equal neighbouring replicas share a row, a replica with an origin has its own."""

    def content(replica: int) -> tuple[list[dict[RankState, int]], int | None]:
        counts = [_counts(replicas[replica][stage]) for stage in columns]
        has_origin = any(RankState.ORIGIN in by_state for by_state in counts)
        return counts, replica if has_origin else None

    for _, equal in groupby(sorted(replicas), content):
        group = list(equal)
        cells = tuple((_many([row for replica in group for row in replicas[replica][stage]]),) for stage in columns)
        yield GridRow(f"dp {group[0]}" if len(group) == 1 else f"dp {group[0]}-{group[-1]}", cells)


def _counts(rows: Sequence[RankRow]) -> dict[RankState, int]:
    """Count the ranks in each state that occurs, the worst state first."""
    counts = Counter(row.state for row in rows)
    return {state: counts[state] for state in RankState if counts[state]}


def _one(row: RankRow, *, is_numbered: bool) -> GridCell:
    words = phrase("rank {rank}, {place}: {state}", rank=row.rank, place=row.label, state=NAMES[row.state])
    return GridCell(str(row.rank), row.state, TONES[row.state].value, str(row.rank) if is_numbered else "", words)


def _many(rows: Sequence[RankRow]) -> GridCell:
    counts = _counts(rows)
    worst = next(iter(counts), RankState.MISSING)
    states = (phrase("{count} {state}", count=count, state=NAMES[state]) for state, count in counts.items())
    words = phrase("{number} ranks: {states}", number=len(rows), states=joined(LISTED, states))
    share = str(len(rows)) if len(counts) < 2 else f"{counts[worst]}/{len(rows)}"
    runs = runs_of(sorted(row.rank for row in rows))
    # Every rank, in full: "0-7,16-23,40".
    ranks = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return GridCell(ranks, worst, TONES[worst].value, share, words)
