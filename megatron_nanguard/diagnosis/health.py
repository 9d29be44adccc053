"""What the hardware's own readings prove, asked by several rules alike.

An uncorrectable error since the start of the run, on the device where it began, outweighs everything; on another device
it says little. Errors that were mended left the data as it was: they, and lowered clocks, are hints at most. Silence
proves nothing: most wrong results of a device leave no trace in its counters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.suspect_call import is_always_bad
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.health import DeviceHealth, HealthDifference, Severity
from megatron_nanguard.records.incident import Incident
from megatron_nanguard.records.phrase import Phrase, phrase
from megatron_nanguard.records.rank_words import name_ranks

OUTWEIGHS: Final = 12.0
"""More than all that a rule can lay against it."""
REPORTED_CEILING: Final = 0.99
"""Just above every other cause."""
LITTLE: Final = 0.5
HINTS: Final[dict[Severity, Phrase]] = {
    "corrected": phrase("the device of rank {rank} reports errors that were corrected: {change}"),
    "throttle": phrase("the device of rank {rank} reports lowered clocks: {change}"),
}

LISTED_ACCUSED: Final = 8
"""Ranks that are told of where nobody knows which of them it began on."""


class Report(NamedTuple):
    """A change on the device, or the host, of one rank."""

    health: DeviceHealth
    difference: HealthDifference

    def words(self) -> str:
        """What changed: "ECC errors, uncorrected, volatile from 0 to 2"."""
        changed = self.difference
        if not changed.before:
            return phrase("{what} from nothing to {now}", what=changed.what, now=changed.now)
        return phrase("{what} from {before} to {now}", what=changed.what, before=changed.before, now=changed.now)


def changes(case: Case, severity: Severity, part: str = "device") -> Iterator[Report]:
    """The changes of one severity on any rank that told of some."""
    for health in case.incident.health:
        for difference in health.differences:
            if (difference.severity, difference.part) == (severity, part):
                yield Report(health, difference)


def accused(case: Case) -> frozenset[int]:
    """The ranks where it began; where that is not known those that were bad before the reduction."""
    began = {rank for origin in case.incident.origin for rank in origin.members}
    return frozenset(began or case.incident.ranks.bad_before)


def lost_data(case: Case) -> tuple[Report, ...]:
    """The uncorrectable errors on the devices of accused ranks."""
    ranks = case.suspect_ranks
    return tuple(report for report in changes(case, "uncorrectable") if report.health.rank in ranks)


def came_back(case: Case) -> bool:
    """Whether the fault was there again when the step, or the accused call, was run again."""
    return case.came_back("plain") == "yes" or any(map(is_always_bad, case.usable_calls))


def was_read(case: Case) -> bool:
    """Whether the device of an accused rank was asked and told something."""
    ranks = case.suspect_ranks
    mine = [health for health in case.incident.health if health.rank in ranks]
    return any(reading.part == "device" for health in mine for reading in health.readings)


def weigh_lost_data(case: Case, reports: Collection[Report], scales: Scales) -> None:
    """Lay uncorrectable errors of accused devices, if there are any, into the scales of a cause in hardware."""
    if not reports:
        return
    reporting = {report.health.rank for report in reports}
    weight = OUTWEIGHS
    if not case.incident.origin and case.suspect_ranks - reporting:
        weight = DECISIVE
        scales.not_tested(phrase("whether it began on {ranks}", ranks=name_ranks(sorted(reporting))))
    if unexplained := _unexplained(case, reporting):
        weight = STRONG
        told = phrase("it began on {ranks} too, where no device reports such an error", ranks=name_ranks(unexplained))
        scales.speaks_against(STRONG, told)
    for report in reports:
        told = phrase(
            "the device of rank {rank} itself reports an uncorrectable error since the start of the run: {change}",
            rank=report.health.rank,
            change=report.words(),
        )
        scales.speaks_for(weight, told, "reported")


def _unexplained(case: Case, reporting: set[int]) -> list[int]:
    """Ranks with an origin of their own; a communication is explained by any of its members."""
    members = [set(origin.members) for origin in case.incident.origin]
    return sorted(rank for ranks in members if not ranks & reporting for rank in ranks)


def weigh_hints(case: Case, scales: Scales) -> None:
    """Lay mended errors and lowered clocks of accused devices, and memory errors of their hosts, into the scales."""
    ranks = case.suspect_ranks
    for severity, words in HINTS.items():
        for report in changes(case, severity):
            if report.health.rank in ranks:
                told = words.format(rank=report.health.rank, change=report.words())
                scales.speaks_for(HINT, told, "hint")
    for report in changes(case, "uncorrectable", "host"):
        if report.health.rank in ranks:
            told = phrase(
                "the host of rank {rank} lost data in its own memory: {change}",
                rank=report.health.rank,
                change=report.words(),
            )
            scales.speaks_for(HINT, told, "host")


def weigh_elsewhere(case: Case, scales: Scales) -> None:
    """Lay an uncorrectable error on a device where it did not begin into the scales: it weighs little."""
    ranks = case.suspect_ranks
    for report in changes(case, "uncorrectable"):
        if report.health.rank not in ranks:
            told = phrase(
                "the device of rank {rank}, where it did not begin, reports an uncorrectable error: {change}",
                rank=report.health.rank,
                change=report.words(),
            )
            scales.speaks_for(LITTLE, told, "elsewhere")


def worth_telling(incident: Incident) -> tuple[DeviceHealth, ...]:
    """The hardware of the ranks where it began, then of those with something new, then of one healthy peer."""
    began = {rank for origin in incident.origin for rank in origin.members}
    candidates = began or set(incident.ranks.bad_before)
    first = [health for health in incident.health if health.rank in candidates]
    if not began:
        first = first[:LISTED_ACCUSED]
    with_news = [health for health in incident.health if health.has_news and health not in first]
    with_news.sort(key=lambda health: not health.has_lost_data)
    healthy = [health for health in incident.health if health.rank not in candidates and is_healthy(health)]
    clean = set(incident.ranks.clean)
    return (*first, *with_news, *sorted(healthy, key=lambda health: health.rank not in clean)[:1])


def is_healthy(health: DeviceHealth) -> bool:
    """Whether a device was read and tells of nothing new."""
    return bool(health.readings) and not health.differences
