"""How it spread from the origin: by which communication each rank went bad first."""

from __future__ import annotations

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.wording import counted, rank_list

SHOWN_WAYS = 12
COLUMNS = ("ranks", "from", "by", "group", "first used")


def describe(incident: Incident) -> Block | None:
    """One row per communication: ranks that share it, its sources and the first use are told together."""
    if not incident.origin or not incident.infected:
        return None
    ways: dict[tuple[tuple[int, ...], str, str, str], list[int]] = {}
    for infected in incident.infected:
        way = (infected.from_ranks, infected.by, infected.group, infected.first_used or "-")
        ways.setdefault(way, []).append(infected.rank)
    rows = [
        (rank_list(sorted(ranks)), rank_list(sources), by, group, used)
        for (sources, by, group, used), ranks in ways.items()
    ]
    more = len(rows) - SHOWN_WAYS
    return Block(
        f"Infection: {counted(len(incident.infected), 'rank')} through communication alone",
        columns=COLUMNS,
        rows=tuple(rows[:SHOWN_WAYS]),
        notes=(f"... and {counted(more, 'more way')}",) if more > 0 else (),
    )
