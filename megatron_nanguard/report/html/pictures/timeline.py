"""The step as its micro-batches and phases: where it began, and where each rank used bad values first.

Phases stand in the order of a step and micro-batches under each other; nothing is to scale, for no clock was read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import FOLLOWED, joined, phrase
from megatron_nanguard.records.place_words import phase_words
from megatron_nanguard.records.rank_words import name_ranks, rank_list
from megatron_nanguard.records.trace import Phase
from megatron_nanguard.report.formatting import counted
from megatron_nanguard.report.html.pictures.figure import Figure, label, short
from megatron_nanguard.report.lang import Tell

PHASES: tuple[str, ...] = get_args(Phase)
WHEN = re.compile(rf"^(?P<phase>{'|'.join(PHASES)})(?: of micro-batch (?P<microbatch>\d+))?")
"""How a first use begins, such as "backward of micro-batch 2, decoder.layers.1"."""

ALWAYS_SHOWN = ("load", "forward", "backward", "finalize", "optimizer")
SHOWN_MICROBATCHES = 16
WHOLE_STEP = phrase("whole step")
MICROBATCH = phrase("micro-batch {index}")
BESIDE = 0.4
"""Between marks of one spot, in columns."""

TITLE: Final = phrase("Timeline of the step")
CAPTION: Final = phrase(
    "Phases from left to right, micro-batches from top to bottom, in their order and not to scale. A square is where "
    "the first bad value was made, a triangle where a rank used bad values that it was sent, in the colour of that "
    "rank, a cross a loss that was not finite."
)
BEGAN: Final = phrase("origin on {who}: {operator} in {module}")
QUIET: Final = phrase("Not drawn are micro-batches of which nothing bad is known: {indices}.")

Spot = tuple[int | None, str]
"""Micro-batch, None for what comes once in a step, and phase."""


class Look(NamedTuple):
    """How one kind of mark is drawn.

    Attributes:
        symbol: of plotly.
        colour: by its name.
        size: in pixels.
    """

    symbol: str
    colour: str
    size: int


LOOKS = {
    "loss": Look("x", "bad", 13),
    "bad": Look("triangle-right", "bad", 13),
    "infected": Look("triangle-right", "infected", 13),
    "origin": Look("square", "origin", 15),
}


@dataclass(frozen=True)
class Mark:
    """Something that is known to have happened at a spot.

    Attributes:
        kind: key of `LOOKS`.
        words: what, for a person.
        short: the same, as there is room for in the picture.
    """

    kind: str
    words: str
    short: str


def timeline(incident: Incident, tell: Tell = str) -> Figure | None:
    """Place what is known in the step; None where no origin, no bad loss and no first use of bad values is.

    Of many micro-batches with a mark those where it began come first, then the lowest ones.

    Args:
        incident: the merged incident.
        tell: puts a text into the language of the page.
    """
    marks = _marks(incident)
    if not marks:
        return None
    began = {origin.microbatch for origin in incident.origin}
    bad = {spot[0] for spot in marks if spot[0] is not None}
    marked = sorted(sorted(bad, key=lambda index: (index not in began, index))[:SHOWN_MICROBATCHES])
    lanes = [*(MICROBATCH.format(index=index) for index in marked), WHOLE_STEP]
    quiet = sorted({losses.index for losses in incident.losses} - bad)
    seen = {phase for _, phase in marks}
    phases = [phase for phase in PHASES if phase in seen or phase in ALWAYS_SHOWN]
    return Figure(
        name="timeline",
        title=TITLE,
        caption=joined(FOLLOWED, (CAPTION, QUIET.format(indices=rank_list(quiet)) if quiet else "")),
        traces=tuple(_traces(marks, phases, lanes, tell)),
        layout=_layout(phases, lanes),
        width=130 + 130 * len(phases),
    )


def _marks(incident: Incident) -> dict[Spot, list[Mark]]:
    marks: dict[Spot, list[Mark]] = defaultdict(list)
    for origin in incident.origin:
        if origin.phase not in PHASES:
            continue
        who = name_ranks(origin.members)
        words = phrase("origin on {who}", who=who)
        if origin.module:
            words = BEGAN.format(who=who, operator=origin.operator, module=origin.module)
        marks[origin.microbatch, origin.phase].append(Mark("origin", words, who))
    for losses in incident.losses:
        if losses.nonfinite_ranks:
            words = phrase("loss not finite on {ranks}", ranks=name_ranks(losses.nonfinite_ranks))
            marks[losses.index, "forward"].append(Mark("loss", words, phrase("loss")))
    for (spot, kind), reached in _arrivals(incident).items():
        who = name_ranks(sorted(reached))
        words = phrase("bad values reach {who}", who=who)
        marks[spot].append(Mark(kind, words, who if len(reached) < 3 else counted(len(reached), "rank")))
    return marks


def _arrivals(incident: Incident) -> dict[tuple[Spot, str], list[int]]:
    """Where ranks used bad values first, by what became of the ranks."""
    arrivals: dict[tuple[Spot, str], list[int]] = defaultdict(list)
    for infected in incident.infected:
        found = WHEN.match(infected.first_used or "")
        if found:
            microbatch = None if found["microbatch"] is None else int(found["microbatch"])
            kind = "bad" if infected.rank in incident.ranks.bad_before else "infected"
            arrivals[(microbatch, found["phase"]), kind].append(infected.rank)
    return arrivals


def _traces(
    marks: dict[Spot, list[Mark]], phases: Sequence[str], lanes: Sequence[str], tell: Tell
) -> Iterator[dict[str, Any]]:
    for kind, look in LOOKS.items():
        chosen = [
            (phases.index(spot[1]) + place * min(BESIDE, 0.8 / len(seen)), lanes.index(_lane(spot)), mark, place)
            for spot, seen in marks.items()
            if _lane(spot) in lanes
            for place, mark in enumerate(seen)
            if mark.kind == kind
        ]
        if chosen:
            yield {
                "type": "scatter",
                "mode": "markers+text",
                "x": [x for x, _, _, _ in chosen],
                "y": [y for _, y, _, _ in chosen],
                "text": [label(tell(mark.short)) for _, _, mark, _ in chosen],
                "textposition": ["bottom center" if place % 2 else "top center" for _, _, _, place in chosen],
                "textfont": {"color": "ink", "size": 11},
                "marker": {"symbol": look.symbol, "size": look.size, "color": look.colour},
                "customdata": [short(tell(mark.words), 120) for _, _, mark, _ in chosen],
                "hovertemplate": "%{customdata}<extra></extra>",
                "cliponaxis": False,
            }


def _lane(spot: Spot) -> str:
    return WHOLE_STEP if spot[0] is None else MICROBATCH.format(index=spot[0])


def _layout(phases: Sequence[str], lanes: Sequence[str]) -> dict[str, Any]:
    return {
        "height": 90 + 46 * len(lanes),
        "xaxis": {
            "tickvals": list(range(len(phases))),
            "ticktext": list(map(phase_words, phases)),
            "range": [-0.5, len(phases) - 0.3],
        },
        "yaxis": {"tickvals": list(range(len(lanes))), "ticktext": list(lanes), "range": [len(lanes) - 0.5, -0.7]},
        "showlegend": False,
    }
