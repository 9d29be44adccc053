"""Why it began: ranked explanations, with what speaks for and against each."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_nanguard.records.incident import Cause, Incident
from megatron_nanguard.report.blocks import Block

TOLD_IN_FULL = 3


def describe(incident: Incident) -> Block | None:
    """The first three in full, the others by name."""
    if not incident.causes:
        return None
    lines = [line for cause in incident.causes[:TOLD_IN_FULL] for line in _lines(cause)]
    if rest := incident.causes[TOLD_IN_FULL:]:
        lines.append("less likely: " + ", ".join(f"{_name(cause)} ({cause.confidence:.2f})" for cause in rest))
    return Block("Causes, most likely first", notes=tuple(lines))


def _lines(cause: Cause) -> Iterator[str]:
    yield "undecided" if cause.cause == "undecided" else f"{_name(cause)}, confidence {cause.confidence:.2f}"
    yield from (f"  + {fact}" for fact in cause.for_)
    yield from (f"  - {fact}" for fact in cause.against)
    yield from (f"  not tested: {what}" for what in cause.not_tested)
    if cause.next:
        yield f"  next: {cause.next}"


def _name(cause: Cause) -> str:
    return cause.cause.replace("_", " ")
