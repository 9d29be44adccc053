"""The facts that the page shows about a rank when its cell is chosen.

The page contains place and state of every rank, and further facts of the worst ranks only, so that a page of sixteen
thousand ranks is still small enough to be mailed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from megatron_nanguard.postmortem.rank_table import RankRow, RankState
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import LISTED, TOGETHER, joined, phrase
from megatron_nanguard.records.trace import place_words
from megatron_nanguard.report.formatting import call_words, counted, number, pattern_words
from megatron_nanguard.report.opened_incident import OpenedIncident
from megatron_nanguard.report.rank_states import NAMES

DETAILED_RANKS: Final = 256
SHOWN_LAYERS: Final = 12
SHOWN_NOTES: Final = 8

Facts = list[tuple[str, str]]


def rank_details(opened: OpenedIncident) -> dict[int, Facts]:
    """Map each of the worst ranks to the names and values of its facts."""
    order = list(RankState)
    worst_first = sorted(opened.rows, key=lambda row: (order.index(row.state), not row.has_file, row.rank))
    return {row.rank: [*_facts(row), *_origins(row, opened.incident)] for row in worst_first[:DETAILED_RANKS]}


def rank_places(table: Sequence[RankRow]) -> list[tuple[int, str, str]]:
    """List rank, place in the layout and state of every row."""
    return [(row.rank, row.label, row.state.value) for row in table]


def _facts(row: RankRow) -> Iterator[tuple[str, str]]:
    yield phrase("state"), NAMES[row.state]
    yield from ((name, text) for name, text in ((phrase("host"), row.host), (phrase("device"), row.device)) if text)
    if row.infected and row.infected.from_ranks:
        yield phrase("infected by"), joined(LISTED, (row.infected.by, row.infected.group))
        if row.infected.first_used:
            yield phrase("first used"), row.infected.first_used
    if row.norm is not None:
        yield phrase("norm before reduction"), number(row.norm)
    if row.reduced_norm is not None:
        yield phrase("norm after reduction"), number(row.reduced_norm)
    if row.bad_by_layer:
        yield phrase("bad parameters"), _layers(row)
    if any(one.loss is not None for one in row.microbatches):
        yield phrase("losses"), ", ".join(number(one.loss) for one in row.microbatches[:16])
    yield from ((phrase("note"), note) for note in row.notes[:SHOWN_NOTES])
    if not row.has_file:
        yield phrase("file"), phrase("none that could be read")


def _origins(row: RankRow, incident: Incident) -> Iterator[tuple[str, str]]:
    """Yield a name and value for each origin on the rank."""
    for origin in incident.origin:
        if row.rank in origin.members:
            what, when = call_words(origin), place_words(origin.phase, origin.microbatch)
            words = phrase("{what}, {when}: {pattern}", what=what, when=when, pattern=pattern_words(origin.pattern))
            yield phrase("began here"), words


def _layers(row: RankRow) -> str:
    layers = list(row.bad_by_layer.items())
    shown = joined(LISTED, (phrase("{count} in {layer}", count=n, layer=layer) for layer, n in layers[:SHOWN_LAYERS]))
    more = len(layers) - SHOWN_LAYERS
    return joined(TOGETHER, (shown, counted(more, "more layer"))) if more > 0 else shown
