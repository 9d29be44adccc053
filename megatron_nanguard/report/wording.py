"""How numbers and sets of ranks read, the same in every section."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN_RANKS = 16


def number(value: float | None) -> str:
    """Six digits; "nan" and "inf" as they are, "-" for what is not known."""
    return "-" if value is None else f"{value:.6g}"


def count(value: int | None) -> str:
    """A count, "-" for what could not be counted."""
    return "-" if value is None else str(value)


def counted(total: int, noun: str) -> str:
    """A number and its noun: "1 parameter", "12 parameters"."""
    return f"{total} {noun}" if total == 1 else f"{total} {noun}s"


def rank_list(ranks: Sequence[int], total: int | None = None) -> str:
    """Ranks in runs, such as "0-3, 8", cut after 16 runs.

    Args:
        ranks: ascending.
        total: how many there are when `ranks` holds only the first of them.
    """
    if not ranks:
        return "none"
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    shown = ", ".join(_run(first, last) for first, last in runs[:SHOWN_RANKS])
    total = len(ranks) if total is None else total
    return shown if len(runs) <= SHOWN_RANKS and total == len(ranks) else f"{shown}, ... ({total} ranks)"


def _run(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}, {last}" if last == first + 1 else f"{first}-{last}"
