"""What changed between two looks at the hardware."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from megatron_nanguard.health.severity import WORST_FIRST, severity_of_counter, severity_of_state
from megatron_nanguard.records.health import HealthDifference, HealthReading

COUNTS_FROM_START: Final = frozenset({"kernel log"})
"""Sources that begin to count when the run begins: whatever they have counted is new."""


def differences(before: Sequence[HealthReading], now: Sequence[HealthReading]) -> tuple[HealthDifference, ...]:
    """Counters that grew and states that changed, worst first.

    A source that told nothing at the start is left out: what it counts now may be older than the run.
    """
    at_start = {(reading.source, reading.part): reading for reading in before}
    found: list[HealthDifference] = []
    for reading in now:
        earlier = at_start.get((reading.source, reading.part))
        if reading.source in COUNTS_FROM_START:
            earlier = HealthReading(reading.source, reading.part, {}, {})
        if earlier is not None:
            found += _between(earlier, reading)
    return tuple(sorted(found, key=lambda difference: WORST_FIRST.index(difference.severity)))


def _between(before: HealthReading, now: HealthReading) -> Iterator[HealthDifference]:
    for name, count in now.counters.items():
        earlier = before.counters.get(name, 0)
        if count > earlier:
            yield HealthDifference(now.part, name, str(earlier), str(count), severity_of_counter(name))
    for name, state in now.states.items():
        earlier_state = before.states.get(name, "")
        severity = severity_of_state(name, state)
        if severity is not None and state != earlier_state:
            yield HealthDifference(now.part, name, earlier_state, state, severity)
