"""Write a set of ranks in a sentence or in a table."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.records.phrase import phrase

NAMED_RANKS = 16
"""Longest list of ranks that a sentence spells out."""
SHOWN_RUNS = 16
"""Most runs that a cell of a table shows."""


def name_ranks(ranks: Sequence[int]) -> str:
    """Spell out a set of ranks, or its beginning and its size: "ranks 4, 5", "rank 7", "no rank"."""
    if not ranks:
        return phrase("no rank")
    if len(ranks) == 1:
        return phrase("rank {rank}", rank=ranks[0])
    shown = ", ".join(str(rank) for rank in ranks[:NAMED_RANKS])
    if len(ranks) <= NAMED_RANKS:
        return phrase("ranks {shown}", shown=shown)
    return phrase("{number} ranks ({shown}, ...)", number=len(ranks), shown=shown)


def rank_list(ranks: Sequence[int], total: int | None = None) -> str:
    """Ranks in runs, such as "0-3, 8", cut after 16 runs.

    Args:
        ranks: ascending.
        total: how many there are when `ranks` holds only the first of them.
    """
    if not ranks:
        return phrase("none")
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    shown = ", ".join(_run(first, last) for first, last in runs[:SHOWN_RUNS])
    total = len(ranks) if total is None else total
    if len(runs) <= SHOWN_RUNS and total == len(ranks):
        return shown
    return phrase("{shown}, ... ({total} ranks)", shown=shown, total=total)


def _run(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}, {last}" if last == first + 1 else f"{first}-{last}"
