"""The timeline of the step: in which micro-batch and phase the fault began, and where each rank used bad values first.

Phases are in the order of a step and micro-batches below each other. There is no time scale, since no clock was read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import FOLLOWED, joined, name_ranks, phrase, rank_list
from megatron_nanguard.records.trace import Phase, phase_words
from megatron_nanguard.report.formatting import counted
from megatron_nanguard.report.html.pictures.axes import named_axis
from megatron_nanguard.report.html.pictures.figure import Figure, PlotlyDict, escape, marks_at, shorten
from megatron_nanguard.report.lang import Translate

PHASES: Final[tuple[str, ...]] = get_args(Phase)
WHEN: Final = re.compile(rf"^(?P<phase>{'|'.join(PHASES)})(?: of micro-batch (?P<microbatch>\d+))?")
"""The beginning of a first use, such as "backward of micro-batch 2, decoder.layers.1"."""

ALWAYS_SHOWN: Final = ("load", "forward", "backward", "finalize", "optimizer")
SHOWN_MICROBATCHES: Final = 16
WHOLE_STEP: Final = phrase("whole step")
MICROBATCH: Final = phrase("micro-batch {index}")
BESIDE: Final = 0.4
"""Largest distance between two marks of one slot, in columns."""

CAPTION: Final = phrase(
    "Phases from left to right, micro-batches from top to bottom, in their order and not to scale. A square is where "
    "the first bad value was made, a triangle where a rank used bad values that it was sent, in the colour of that "
    "rank, a cross a loss that was not finite."
)
QUIET: Final = phrase("Micro-batches in which nothing bad is known are not drawn: {indices}.")

Slot = tuple[int | None, str]
"""Micro-batch and phase; None as the micro-batch for what happens once in a step."""


MARKERS: Final[dict[str, PlotlyDict]] = {
    "loss": {"symbol": "x", "size": 13, "color": "bad"},
    "bad": {"symbol": "triangle-right", "size": 13, "color": "bad"},
    "infected": {"symbol": "triangle-right", "size": 13, "color": "infected"},
    "origin": {"symbol": "square", "size": 15, "color": "origin"},
}


@dataclass(frozen=True)
class TimelineMark:
    """Something that happened in one micro-batch and phase.

    Attributes:
        kind: key of `MARKERS`.
        words: what happened, for the tooltip.
        short: the same, short enough for the picture.
    """

    kind: str
    words: str
    short: str


def timeline(incident: Incident, translate: Translate = str) -> Figure | None:
    """Draw origins, bad losses and first uses of bad values in their micro-batch and phase.

    Of many micro-batches with marks, those with an origin are drawn first, and then the lowest ones.

    Args:
        incident: the merged incident.
        translate: puts a text into the language of the page.
    Returns:
        The chart; None where there is nothing to mark.
    """
    marks = _marks(incident)
    if not marks:
        return None
    began = {origin.microbatch for origin in incident.origin}
    bad = {slot[0] for slot in marks if slot[0] is not None}
    marked = sorted(sorted(bad, key=lambda index: (index not in began, index))[:SHOWN_MICROBATCHES])
    rows = [*(MICROBATCH.format(index=index) for index in marked), WHOLE_STEP]
    quiet = sorted({losses.index for losses in incident.losses} - bad)
    seen = {phase for _, phase in marks}
    phases = [phase for phase in PHASES if phase in seen or phase in ALWAYS_SHOWN]
    return Figure(
        name="timeline",
        title=phrase("Timeline of the step"),
        caption=joined(FOLLOWED, (CAPTION, QUIET.format(indices=rank_list(quiet)) if quiet else "")),
        traces=tuple(_traces(marks, phases, rows, translate)),
        layout=_layout(phases, rows),
        width=130 + 130 * len(phases),
    )


def _marks(incident: Incident) -> dict[Slot, list[TimelineMark]]:
    marks: dict[Slot, list[TimelineMark]] = defaultdict(list)
    for origin in incident.origin:
        if origin.phase not in PHASES:
            continue
        who = name_ranks(origin.members)
        words = phrase("origin on {who}", who=who)
        if origin.module:
            words = phrase("origin on {who}: {operator} in {module}", who=who, **vars(origin))
        marks[origin.microbatch, origin.phase].append(TimelineMark("origin", words, who))
    for losses in incident.losses:
        if losses.nonfinite_ranks:
            words = phrase("loss not finite on {ranks}", ranks=name_ranks(losses.nonfinite_ranks))
            marks[losses.index, "forward"].append(TimelineMark("loss", words, phrase("loss")))
    for (slot, kind), reached in _arrivals(incident).items():
        who = name_ranks(sorted(reached))
        words = phrase("bad values reach {who}", who=who)
        marks[slot].append(TimelineMark(kind, words, who if len(reached) < 3 else counted(len(reached), "rank")))
    return marks


def _arrivals(incident: Incident) -> dict[tuple[Slot, str], list[int]]:
    """Map each slot (micro-batch and phase) and state to the ranks that first used bad values there."""
    arrivals: dict[tuple[Slot, str], list[int]] = defaultdict(list)
    for infected in incident.infected:
        found = WHEN.match(infected.first_used or "")
        if found:
            microbatch = None if found["microbatch"] is None else int(found["microbatch"])
            kind = "bad" if infected.rank in incident.ranks.bad_before else "infected"
            arrivals[(microbatch, found["phase"]), kind].append(infected.rank)
    return arrivals


def _traces(
    marks: dict[Slot, list[TimelineMark]], phases: Sequence[str], rows: Sequence[str], translate: Translate
) -> Iterator[PlotlyDict]:
    for kind, marker in MARKERS.items():
        chosen = [
            (phases.index(slot[1]) + place * min(BESIDE, 0.8 / len(seen)), rows.index(_row_name(slot)), mark, place)
            for slot, seen in marks.items()
            if _row_name(slot) in rows
            for place, mark in enumerate(seen)
            if mark.kind == kind
        ]
        if chosen:
            yield {
                **marks_at(
                    [(x, y) for x, y, _, _ in chosen],
                    [shorten(translate(mark.words), 120) for _, _, mark, _ in chosen],
                    marker,
                ),
                "mode": "markers+text",
                "text": [escape(translate(mark.short)) for _, _, mark, _ in chosen],
                "textposition": ["bottom center" if place % 2 else "top center" for _, _, _, place in chosen],
                "textfont": {"color": "ink", "size": 11},
            }


def _row_name(slot: Slot) -> str:
    return WHOLE_STEP if slot[0] is None else MICROBATCH.format(index=slot[0])


def _layout(phases: Sequence[str], rows: Sequence[str]) -> PlotlyDict:
    return {
        "height": 90 + 46 * len(rows),
        "xaxis": {**named_axis(list(map(phase_words, phases))), "range": [-0.5, len(phases) - 0.3]},
        "yaxis": {**named_axis(rows), "range": [len(rows) - 0.5, -0.7]},
        "showlegend": False,
    }
