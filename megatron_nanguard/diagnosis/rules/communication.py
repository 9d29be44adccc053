"""The transport: what was sent was finite, what arrived is bad."""

from __future__ import annotations

from megatron_nanguard.diagnosis import health, origin_facts
from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.postmortem import Kind
from megatron_nanguard.records.trace import OriginKind

LINK_ERRORS = phrase("the device of rank {rank} counted errors on its links: {change}")
"""A hint only: the message is sent again after such an error."""


def judge(case: Case, scales: Scales) -> None:
    """Look for communications whose result is bad although every sender was finite."""
    spoiled = case.origins_of(OriginKind.COMMUNICATION)
    for origin in spoiled:
        _weigh_origin(origin, case, scales)
    if spoiled:
        for report in health.suspect_changes(case, "link"):
            scales.speaks_for(HINT, report.fact(LINK_ERRORS), "link")
    if case.incident.kind is Kind.GRADIENT_AFTER_REDUCTION and not case.incident.origin:
        scales.speaks_for(STRONG, phrase("every local gradient was finite, the reduced ones are not"))
    if spoiled and case.came_back("plain") == "no":
        scales.speaks_for(HINT, phrase("the transfer was finite in the replay"))
    if spoiled:
        scales.not_tested(phrase("digests of what was sent against what arrived"))
    others = [origin for origin in case.incident.origin if origin.kind is not OriginKind.COMMUNICATION]
    if others:
        scales.speaks_against(DECISIVE, phrase("bad before it was sent: {origin}", origin=case.name(others[0])))


def _weigh_origin(origin: Origin, case: Case, scales: Scales) -> None:
    name = case.name(origin)
    if origin_facts.is_sum_overflow(origin):
        fact = phrase("finite at every sender, Inf on arrival: {origin}, {output}", origin=name, output=origin.output)
        scales.speaks_for(HINT, fact, "sum")
        scales.speaks_against(HINT, phrase("a sum of finite values that are too large gives the same"))
    else:
        fact = phrase("finite at every sender, {pattern} on arrival: {origin}, {output}", origin=name, **vars(origin))
        scales.speaks_for(DECISIVE, fact, "spoiled")
