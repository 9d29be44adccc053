"""The step again: whether it ran, and how true to the first time."""

from __future__ import annotations

from megatron_nanguard.records.incident import Incident
from megatron_nanguard.report.blocks import Block

EXACT = {True: "bit for bit", False: "no: its bits differ from those of the first pass", None: "not known"}


def describe(incident: Incident) -> Block | None:
    """The passes in order; a replay that was not done is told among the notes."""
    replay = incident.replay
    if not replay.done:
        return None
    rows = [("equal to the first pass", EXACT[replay.exact])]
    if replay.stages:
        rows.append(("passes", ", ".join(replay.stages)))
    return Block("Replay", rows=tuple(rows))
