"""What the readings of the hardware prove, for all rules.

An uncorrectable error since the start of the run, on the device where it began, outweighs everything; on another device
it says little. Corrected errors left the data as it was: they, and lowered clocks, are hints. Without any report
nothing is proved: most wrong results of a device do not show in its counters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.suspect_call import is_always_bad
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, SLIGHT, STRONG, Scales
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.machine.health import DeviceHealth, HealthDifference, Severity
from megatron_nanguard.records.phrase import Phrase, name_ranks, phrase

OUTWEIGHS: Final = 12.0
"""More than all facts together that a rule can hold against a cause."""
REPORTED_CEILING: Final = 0.99
"""Ceiling of a cause that the device reports itself; just above that of every other cause."""
LOST_DATA: Final = phrase(
    "the device of rank {rank} itself reports an uncorrectable error since the start of the run: {change}"
)
LOST_ELSEWHERE: Final = phrase(
    "the device of rank {rank}, where it did not begin, reports an uncorrectable error: {change}"
)
HINTS: Final[tuple[tuple[Severity, str, Phrase], ...]] = (
    ("corrected", "device", phrase("the device of rank {rank} reports errors that were corrected: {change}")),
    ("throttle", "device", phrase("the device of rank {rank} reports lowered clocks: {change}")),
    ("uncorrectable", "host", phrase("the host of rank {rank} lost data in its own memory: {change}")),
)


class ReportedChange(NamedTuple):
    """A change on the device, or the host, of one rank."""

    rank: int
    difference: HealthDifference

    def fact(self, form: Phrase) -> Phrase:
        """A sentence about the rank and its change: "ECC errors, uncorrected, volatile from 0 to 2"."""
        changed, words = self.difference, phrase("{what} from {before} to {now}")
        if not changed.before:
            words = phrase("{what} from nothing to {now}")
        change = words.format(what=changed.what, before=changed.before, now=changed.now)
        return form.format(rank=self.rank, change=change)


def changes(case: Case, severity: Severity, part: str = "device") -> Iterator[ReportedChange]:
    """The changes of one severity, on all ranks."""
    for health in case.incident.health:
        for difference in health.differences:
            if (difference.severity, difference.part) == (severity, part):
                yield ReportedChange(health.rank, difference)


def suspect_changes(case: Case, severity: Severity, part: str = "device") -> tuple[ReportedChange, ...]:
    """The changes of one severity on the devices, or the hosts, of suspect ranks."""
    ranks = case.incident.suspect_ranks
    return tuple(report for report in changes(case, severity, part) if report.rank in ranks)


def came_back(case: Case) -> bool:
    """Whether the fault was there again when the step, or the suspect call, was run again."""
    return case.came_back("plain") == "yes" or any(map(is_always_bad, case.usable_calls))


def was_read(case: Case) -> bool:
    """Whether the device of a suspect rank gave any reading."""
    ranks = case.incident.suspect_ranks
    mine = [health for health in case.incident.health if health.rank in ranks]
    return any(reading.part == "device" for health in mine for reading in health.readings)


def weigh_lost_data(case: Case, reports: Collection[ReportedChange], scales: Scales) -> None:
    """Weigh the uncorrectable errors of suspect devices, if there are any, for a cause in hardware."""
    if not reports:
        return
    reporting = {report.rank for report in reports}
    weight = OUTWEIGHS
    if not case.incident.origin and case.incident.suspect_ranks - reporting:
        weight = DECISIVE
        scales.not_tested(phrase("whether it began on {ranks}", ranks=name_ranks(sorted(reporting))))
    if unexplained := _unexplained(case, reporting):
        weight = STRONG
        fact = phrase("it began on {ranks} too, where no device reports such an error", ranks=name_ranks(unexplained))
        scales.speaks_against(STRONG, fact)
    for report in reports:
        scales.speaks_for(weight, report.fact(LOST_DATA), "reported")


def _unexplained(case: Case, reporting: set[int]) -> list[int]:
    """The ranks with an origin that no reporting device explains; any member explains a communication."""
    members = [set(origin.members) for origin in case.incident.origin]
    return sorted(rank for ranks in members if not ranks & reporting for rank in ranks)


def weigh_hints(case: Case, scales: Scales) -> None:
    """Weigh corrected errors and lowered clocks of suspect devices, and memory errors of their hosts."""
    for severity, part, words in HINTS:
        for report in suspect_changes(case, severity, part):
            scales.speaks_for(HINT, report.fact(words), "host" if part == "host" else "hint")


def weigh_elsewhere(case: Case, scales: Scales) -> None:
    """Weigh an uncorrectable error on a device where it did not begin, which says little."""
    ranks = case.incident.suspect_ranks
    for report in changes(case, "uncorrectable"):
        if report.rank not in ranks:
            scales.speaks_for(SLIGHT, report.fact(LOST_ELSEWHERE), "elsewhere")


def relevant_health(incident: Incident) -> tuple[DeviceHealth, ...]:
    """Choose the hardware that the incident names: where it began, where something changed, and one healthy peer.

    Where no origin is known, at most 8 of the ranks that were bad before the reduction count as those where it began.
    """
    candidates = incident.suspect_ranks
    first = [health for health in incident.health if health.rank in candidates]
    if not incident.origin:
        first = first[:8]
    changed = [health for health in incident.health if health.has_news and health not in first]
    changed.sort(key=lambda health: not health.has_lost_data)
    healthy = [health for health in incident.health if health.rank not in candidates and is_healthy(health)]
    clean = set(incident.ranks.clean)
    return (*first, *changed, *sorted(healthy, key=lambda health: health.rank not in clean)[:1])


def is_healthy(health: DeviceHealth) -> bool:
    """Whether a device gave readings and nothing changed."""
    return bool(health.readings) and not health.differences
