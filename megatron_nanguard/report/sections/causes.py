"""The explanations of an incident: ranked causes with their evidence, and advice for the patterns that were recognised.

1. numerics (very likely, 0.95)
   + values outside of its domain: log in decoder.layers.3.mlp
   ? not tested: the same call on another device
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from megatron_nanguard.diagnosis.texts import advice_texts, meaning
from megatron_nanguard.records.causes import Cause, RankedCause
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import ALONGSIDE, joined, phrase
from megatron_nanguard.report.blocks import Block, Point, Tone
from megatron_nanguard.report.formatting import judged
from megatron_nanguard.report.opened_incident import OpenedIncident

DETAILED_CAUSES: Final = 3
LOWER_SCALE: Final = {
    "bad": phrase("Run again at 1/256 of its loss scale, the step was bad too: the scale did not overflow."),
    "finite": phrase("Run again at 1/256 of its loss scale, the step was finite: the scale overflowed."),
}


def describe(opened: OpenedIncident) -> Block | None:
    """Show the first three causes with their evidence and the others by name; say so where no cause stands out."""
    causes = opened.incident.causes
    if not causes:
        return None
    undecided = [cause for cause in causes if cause.cause == Cause.UNDECIDED]
    ranked = [cause for cause in causes if cause.cause != Cause.UNDECIDED]
    return Block(
        phrase("Causes, none clearly ahead") if undecided else phrase("Causes, most likely first"),
        text=(Cause.UNDECIDED.meaning,) if undecided else (),
        points=(
            *(
                _point(number, cause, opened.incident.origin)
                for number, cause in enumerate(ranked[:DETAILED_CAUSES], start=1)
            ),
            *(_not_tested(what) for cause in undecided for what in cause.not_tested),
        ),
        notes=tuple(_notes(opened, ranked)),
    )


def _point(number: int, cause: RankedCause, origins: Sequence[Origin]) -> Point:
    facts = (
        *(Point(words, tone=Tone.QUIET) for words in filter(None, (meaning(cause.cause, origins),))),
        *(Point(fact, "+", Tone.GOOD) for fact in cause.for_),
        *(Point(fact, "-", Tone.BAD) for fact in cause.against),
        *map(_not_tested, cause.not_tested),
    )
    return Point(judged(cause), f"{number}.", below=facts)


def _not_tested(what: str) -> Point:
    return Point(phrase("not tested: {what}", what=what), "?", Tone.UNKNOWN)


def _notes(opened: OpenedIncident, ranked: Sequence[RankedCause]) -> list[str]:
    scale = LOWER_SCALE.get(opened.incident.replay.lower_scale)
    rest = joined(ALONGSIDE, map(judged, ranked[DETAILED_CAUSES:]))
    less = phrase("less likely: {causes}", causes=rest) if rest else ""
    scores = phrase("The numbers are scores of single causes; they need not add up to 1.") if len(ranked) > 1 else ""
    return [note for note in (scale, less, scores) if note]


def describe_advice(opened: OpenedIncident) -> Block | None:
    """Show what to check and what to change for each pattern; a pattern that has no text is only named."""
    points = tuple(map(_advice_point, opened.incident.advice))
    return Block(phrase("What helps"), points=points) if points else None


def _advice_point(pattern: str) -> Point:
    text = advice_texts().get(pattern)
    if text is None:
        return Point(pattern.replace("_", " "))
    return Point(
        text.what,
        below=(
            Point(phrase("check: {text}", text=text.check)),
            Point(phrase("change: {text}", text=text.change)),
        ),
    )
