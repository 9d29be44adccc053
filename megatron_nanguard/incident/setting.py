"""Where an incident takes place, and what it may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from megatron_nanguard.coordination.voting_ranks import Voters
from megatron_nanguard.coordination.watchdog import Watchdog
from megatron_nanguard.health import HealthWatch
from megatron_nanguard.incident.outcome import ExchangeOutcome
from megatron_nanguard.incident.passes import Exercise
from megatron_nanguard.patching import Shield
from megatron_nanguard.postmortem.run_directory import RunDirectory
from megatron_nanguard.records.incident import PolicyOutcome

Policy = Callable[[ExchangeOutcome], PolicyOutcome]
"""Decides from what all ranks know alike."""


@dataclass(frozen=True)
class Setting:
    """Where the incident takes place.

    Attributes:
        voters: the ranks that take part.
        run: where its files go.
        run_id: name of the attempt.
        deadline: seconds per stage.
        policy_name: as the user asked.
        shield: keeps faults of ours out of training.
        watchdog: sees a rank that is late or gone.
        exercise: what surrounds each pass of a replay.
        capture: level of --nanguard-capture.
        counts: what alarms came to.
        health: of the hardware under this rank; None where nobody looks at it.
    """

    voters: Voters
    run: RunDirectory
    run_id: str
    deadline: float
    policy_name: str
    shield: Shield
    watchdog: Watchdog
    exercise: Exercise
    capture: str
    counts: Counter[str] = field(default_factory=Counter)
    health: HealthWatch | None = None
