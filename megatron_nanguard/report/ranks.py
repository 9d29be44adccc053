"""Who was bad before the reduction, and who was infected by it."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.records.coordinates import RankGroup
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.wording import rank_list

SHOWN_PATHS = 8


def describe(incident: Incident) -> Block:
    """The three sets with the failing groups in words, then what the layout tells of the infection."""
    ranks = incident.ranks
    rows = [
        ("bad before the reduction", rank_list(ranks.bad_before), _words(ranks.bad_before, incident.groups)),
        ("bad after it only", rank_list(ranks.bad_after_only), _words(ranks.bad_after_only, _infected(incident))),
        ("clean", rank_list(ranks.clean), ""),
    ]
    if incident.missing_ranks:
        rows.append(("no readable file", rank_list(incident.missing_ranks), ""))
    # With an origin known the infection has a section of its own.
    return Block("Ranks", rows=tuple(rows), notes=() if incident.origin else _paths(incident))


def _infected(incident: Incident) -> Sequence[RankGroup]:
    """Where no rank was bad before, the failing set is the one after the reduction."""
    return incident.infected_groups or (() if incident.ranks.bad_before else incident.groups)


def _words(ranks: Sequence[int], groups: Sequence[RankGroup]) -> str:
    return "; ".join(group.words for group in groups) if ranks else ""


def _paths(incident: Incident) -> tuple[str, ...]:
    """One line per communication and source: infected ranks that share both are told together."""
    paths: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for infected in incident.infected:
        paths.setdefault((infected.by, infected.group, infected.from_ranks), []).append(infected.rank)
    lines = [_path(by, group, sources, sorted(ranks)) for (by, group, sources), ranks in paths.items()]
    more = len(lines[SHOWN_PATHS:])
    return (*lines[:SHOWN_PATHS], *([f"... and {more} more paths of infection"] if more else []))


def _path(by: str, group: str, sources: Sequence[int], ranks: Sequence[int]) -> str:
    who = f"infected {rank_list(ranks)}"
    return f"{who} from {rank_list(sources)} by {by} ({group})" if sources else f"{who} by a way that is not known"
