"""Give each state of a rank its tone, name and line in the legend, the same in every picture of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from megatron_nanguard.postmortem.rank_table import RankRow, RankState
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.report.blocks import Tone
from megatron_nanguard.report.formatting import counted

TONES: Final = {
    RankState.ORIGIN: Tone.WORST,
    RankState.BAD_BEFORE: Tone.BAD,
    RankState.INFECTED: Tone.SPREAD,
    RankState.MISSING: Tone.UNKNOWN,
    RankState.CLEAN: Tone.GOOD,
}
"""The tone of each state, the worst state first."""
NAMES: Final = {
    RankState.ORIGIN: phrase("origin"),
    RankState.BAD_BEFORE: phrase("bad before the reduction"),
    RankState.INFECTED: phrase("bad after it only"),
    RankState.MISSING: phrase("nothing known"),
    RankState.CLEAN: phrase("clean"),
}
BAD_BESIDE_ORIGIN: Final = phrase("also bad before the reduction")
"""The legend of BAD_BEFORE where the incident has an origin, which was bad before the reduction too."""


Item = TypeVar("Item")


def legend(rows: Sequence[RankRow]) -> dict[RankState, str]:
    """Name the states that occur, each with its number of ranks: "origin (1 rank)".

    Args:
        rows: one per rank.
    """
    counts = Counter(row.state for row in rows)
    names = {**NAMES, RankState.BAD_BEFORE: BAD_BESIDE_ORIGIN} if counts[RankState.ORIGIN] else NAMES
    return {
        state: phrase("{state} ({ranks})", state=name, ranks=counted(counts[state], "rank"))
        for state, name in names.items()
        if counts[state]
    }


def keep_worst(items: Sequence[Item], limit: int, tones: Callable[[Item], Iterable[Tone]]) -> list[Item]:
    """Keep as many items as a picture has room for: those with the worst ranks, in their given order.

    Args:
        items: rows or columns of a picture.
        limit: how many there is room for.
        tones: the tones in an item, at least one of TONES.
    """
    order = list(TONES.values())
    worst_first = sorted(range(len(items)), key=lambda index: min(map(order.index, tones(items[index]))))
    return [items[index] for index in sorted(worst_first[:limit])]
