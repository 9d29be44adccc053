"""Hardware readings: what changed since the start of the run, and a healthy rank for comparison.

rank  of      what                                at the start  now  means
5     device  ECC errors, uncorrected, volatile   0             2    uncorrectable
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from megatron_nanguard.diagnosis.health import is_healthy
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.machine.health import DeviceHealth
from megatron_nanguard.records.phrase import ALONGSIDE, LISTED, joined, name_ranks, phrase
from megatron_nanguard.report.blocks import Block, Tone
from megatron_nanguard.report.formatting import more_note
from megatron_nanguard.report.opened_incident import OpenedIncident

COLUMNS: Final = (
    phrase("rank"),
    phrase("of"),
    phrase("what"),
    phrase("at the start"),
    phrase("now"),
    phrase("means"),
)
SHOWN_CHANGES: Final = 16
SHOWN_RANKS: Final = 8
"""Number of ranks whose states are shown: the first ones, and the last, which is the healthy peer."""
LOST: Final = phrase("The hardware under {ranks} reports an uncorrectable error since the start of the run.")
SILENT: Final = phrase(
    "No device that was read reports a new uncorrectable error; a device without one may still be faulty."
)


def describe(opened: OpenedIncident) -> Block | None:
    """Show what changed, then the state of each device; None where no device was read."""
    health = opened.incident.health
    changes = [
        (str(one.rank), change.part, change.what, change.before or "-", change.now, change.severity)
        for one in health
        for change in one.differences
    ]
    notes = tuple(_notes(opened.incident))
    if not changes and not notes:
        return None
    lost = [one.rank for one in health if one.has_lost_data]
    was_asked = any(one.readings for one in health)
    return Block(
        phrase("Hardware readings"),
        text=(LOST.format(ranks=name_ranks(lost)),) if lost else (SILENT,) if was_asked else (),
        columns=COLUMNS if changes else (),
        rows=tuple(changes[:SHOWN_CHANGES]),
        notes=more_note(len(changes) - SHOWN_CHANGES, "more change") + notes,
        tone=Tone.BAD if lost else Tone.PLAIN,
    )


def _notes(incident: Incident) -> Iterator[str]:
    shown = (*incident.health[: SHOWN_RANKS - 1], *incident.health[SHOWN_RANKS - 1 :][-1:])
    for one in shown:
        is_peer = is_healthy(one) and one.rank not in incident.suspect_ranks
        role = phrase("healthy peer") if is_peer else ""
        where = joined(LISTED, (phrase("rank {rank}", rank=one.rank), role, one.host, one.device))
        if states := _states(one):
            yield phrase("{where}: {states}", where=where, states=states)
        yield from (
            phrase("{where}: not readable: {problem}", where=where, problem=problem) for problem in one.problems
        )


def _states(health: DeviceHealth) -> str:
    """Write the states of a device, and its counters above zero, which include errors from before the run."""
    readings = [reading for reading in health.readings if reading.part == "device"]
    states = [f"{name} {state}" for reading in readings for name, state in reading.states.items()]
    counters = [f"{name} {count}" for reading in readings for name, count in reading.counters.items() if count]
    counted_words = phrase("counters: {counters}", counters=", ".join(counters)) if counters else ""
    return joined(ALONGSIDE, (", ".join(states), counted_words))
