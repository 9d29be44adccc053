"""What the guard did on one rank: the content of `status/rank00005.json`, written at exit."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.coordinates import Coordinates


@dataclass(frozen=True, kw_only=True)
class Status:
    """What the guard did on one rank.

    Attributes:
        schema_version: form of this file.
        rank: global rank.
        coordinates: place of the rank in the parallel layout; null when the run ended before the layout was known.
        steps_guarded: steps that ended with a vote.
        points_fired: how often each patch point was called, by target.
        alarms: votes that raised an alarm.
        scale_checks: fp16 steps run again far below their loss scale, to tell an overflow of the scale from a fault.
        incidents: alarms that became incidents.
        notes: what else a reader should know, such as why the guard went off.
    """

    schema_version: int = SCHEMA_VERSION
    rank: int
    coordinates: Coordinates | None
    steps_guarded: int
    points_fired: dict[str, int]
    alarms: int
    incidents: int
    scale_checks: int = 0
    notes: tuple[str, ...] = ()
