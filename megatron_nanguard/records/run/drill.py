"""Planted faults, which no diagnosis reads: the plan in `drill.json`, and what came of it in `drill/rank00005.json`."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_nanguard.records import SCHEMA_VERSION


@dataclass(frozen=True)
class DrillOutcome:
    """One drill on one rank.

    Attributes:
        text: the drill as the user wrote it.
        is_planted: false where this rank does not hold the target of a drill on all ranks.
        fired: how often it went off, replays included.
        steps: the steps in which it did.
        why_not: why it never did; null when it did.
    """

    text: str
    is_planted: bool
    fired: int
    steps: tuple[int, ...]
    why_not: str | None


@dataclass(frozen=True, kw_only=True)
class DrillFile:
    """The drills that name one rank.

    Attributes:
        rank: global rank.
        drills: those planted on the rank, then those on all ranks whose target it does not hold.
        schema_version: form of this file.
    """

    rank: int
    drills: tuple[DrillOutcome, ...]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, kw_only=True)
class DrillPlan:
    """What was to be planted: the content of `drill.json`.

    Attributes:
        spec: `--nanguard-drill` as the user wrote it.
        outcomes: where each rank writes at exit what became of its drills, relative to the run.
        schema_version: form of this file.
    """

    spec: str
    outcomes: str = "drill/"
    schema_version: int = SCHEMA_VERSION
