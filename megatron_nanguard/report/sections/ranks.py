"""Who was bad before the reduction, and who was infected by it."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_nanguard.records.coordinates import RankGroup
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import ALONGSIDE, joined, opening, phrase
from megatron_nanguard.records.rank_words import name_ranks, rank_list
from megatron_nanguard.report.blocks import Block
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.sections.rank_grid import parallel_grid

SHOWN_PATHS = 8
INFECTED = phrase("infected {ranks} from {sources} by {by} ({group})")


def describe(opened: OpenedIncident) -> Block:
    """The layout as a picture, the three sets with the failing groups in words, and how the infection went."""
    incident = opened.incident
    ranks = incident.ranks
    rows = [
        (phrase("bad before the reduction"), _words(ranks.bad_before, incident.groups)),
        (phrase("bad after it only"), _words(ranks.bad_after_only, _infected(incident))),
        (phrase("clean"), rank_list(ranks.clean)),
    ]
    if incident.missing_ranks:
        rows.append((phrase("no readable file"), rank_list(incident.missing_ranks)))
    return Block(
        phrase("Ranks"),
        # Without an origin the verdict says it already.
        text=(_without_step(incident),) if incident.origin else (),
        grid=parallel_grid(opened.rows, incident.sizes),
        rows=tuple(rows),
        # With an origin known the infection has a section of its own.
        notes=() if incident.origin else _paths(incident),
    )


def _without_step(incident: Incident) -> str:
    """The summary of an incident whose step is named above it."""
    return opening(incident.summary.removeprefix(f"Step {incident.step}: "))


def _infected(incident: Incident) -> Sequence[RankGroup]:
    """Where no rank was bad before, the failing set is the one after the reduction."""
    return incident.infected_groups or (() if incident.ranks.bad_before else incident.groups)


def _words(ranks: Sequence[int], groups: Sequence[RankGroup]) -> str:
    """A set and what it is in the layout: "0, 1, 4, 5: data-parallel replica 0"."""
    words = joined(ALONGSIDE, (group.words for group in groups))
    if not ranks or not words:
        return rank_list(ranks)
    # The words of a single rank begin with its number already.
    if words.startswith(name_ranks(ranks)):
        return words
    return phrase("{ranks}: {words}", ranks=rank_list(ranks), words=words)


def _paths(incident: Incident) -> tuple[str, ...]:
    """One line per communication and source: infected ranks that share both are told together."""
    paths: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for infected in incident.infected:
        paths.setdefault((infected.by, infected.group, infected.from_ranks), []).append(infected.rank)
    lines = [_path(by, group, sources, sorted(ranks)) for (by, group, sources), ranks in paths.items()]
    more = len(lines[SHOWN_PATHS:])
    return (*lines[:SHOWN_PATHS], *([phrase("... and {more} more paths of infection", more=more)] if more else []))


def _path(by: str, group: str, sources: Sequence[int], ranks: Sequence[int]) -> str:
    who = rank_list(ranks)
    if not sources:
        return phrase("infected {ranks} by a way that is not known", ranks=who)
    return INFECTED.format(ranks=who, sources=rank_list(sources), by=by, group=group)
