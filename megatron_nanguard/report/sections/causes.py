"""Why it began: ranked explanations, with what speaks for and against each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from megatron_nanguard.diagnosis.meanings import meaning
from megatron_nanguard.records.incident import Origin, RankedCause
from megatron_nanguard.records.phrase import ALONGSIDE, joined, phrase
from megatron_nanguard.report.blocks import Block, Point, Tone
from megatron_nanguard.report.formatting import UNDECIDED, judged
from megatron_nanguard.report.opened_incident import OpenedIncident

TOLD_IN_FULL: Final = 3
SCORES: Final = phrase("The numbers are scores, each of its cause alone: they need not add up to 1.")
LOWER_SCALE: Final = {
    "bad": phrase("Run again at 1/256 of its loss scale the step was bad too: the scale did not overflow."),
    "finite": phrase("Run again at 1/256 of its loss scale the step was finite: the scale overflowed."),
}


def describe(opened: OpenedIncident) -> Block | None:
    """The first three in full, the others by name; a banner above them where none stands out."""
    causes = opened.incident.causes
    if not causes:
        return None
    undecided = [cause for cause in causes if cause.cause == UNDECIDED]
    ranked = [cause for cause in causes if cause.cause != UNDECIDED]
    return Block(
        phrase("Causes, none of which stands out") if undecided else phrase("Causes, most likely first"),
        text=(meaning(UNDECIDED),) if undecided else (),
        points=(
            *(
                _point(number, cause, opened.incident.origin)
                for number, cause in enumerate(ranked[:TOLD_IN_FULL], start=1)
            ),
            *(_not_tested(what) for cause in undecided for what in cause.not_tested),
        ),
        notes=tuple(_notes(opened, ranked[TOLD_IN_FULL:])),
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


def _notes(opened: OpenedIncident, rest: list[RankedCause]) -> list[str]:
    scale = LOWER_SCALE.get(opened.incident.replay.lower_scale)
    less = phrase("less likely: {causes}", causes=joined(ALONGSIDE, map(judged, rest))) if rest else ""
    num_scored = sum(1 for cause in opened.incident.causes if cause.cause != UNDECIDED)
    scores = SCORES if num_scored > 1 else ""
    return [note for note in (scale, less, scores) if note]
