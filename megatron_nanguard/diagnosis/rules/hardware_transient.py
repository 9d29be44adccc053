"""A passing fault of the device: the same call on the same inputs was bad then and is finite now."""

from __future__ import annotations

from megatron_nanguard.diagnosis import health, history
from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.suspect_call import depends_on_memory, name_call
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, SLIGHT, STRONG, Scales
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.trace import OriginKind

WITHOUT_THE_CALL = 0.4
"""Ceiling without a repeated call: a clean replay alone may be a passing fault, a race or chance."""


def judge(case: Case, scales: Scales) -> None:
    """Weigh a fault that went away. Beyond that only the suspect call, run again, says something."""
    repeated = [call for call in case.usable_calls if call.repeats]
    reported = () if health.came_back(case) else health.suspect_changes(case, "uncorrectable")
    usual = 0.9 if repeated else WITHOUT_THE_CALL
    scales.ceiling = health.REPORTED_CEILING if reported else usual
    health.weigh_lost_data(case, reported, scales)
    health.weigh_elsewhere(case, scales)
    plain = case.came_back("plain")
    if plain == "no":
        scales.speaks_for(HINT, phrase("the same step on the same data was finite in the replay"))
        if len(case.incident.ranks.bad_before) == 1:
            fact = phrase("only rank {rank} was bad before the reduction", rank=case.incident.ranks.bad_before[0])
            scales.speaks_for(HINT, fact)
    if case.wavers:
        scales.speaks_for(HINT, phrase("there in one traced replay, gone in the next, which differs in nothing"))
    for call in repeated:
        name, repeats, bad = name_call(call), call.repeats, call.repeats_bad
        if bad == 0:
            fact = phrase("{call} is finite {n} times of {n} on the inputs it failed on", call=name, n=repeats)
            scales.speaks_for(STRONG + HINT, fact, "repeat")
        elif bad < repeats and not depends_on_memory(call):
            fact = phrase("{call} is bad {bad} times of {n} on equal inputs", call=name, bad=bad, n=repeats)
            scales.speaks_for(STRONG + HINT, fact, "sometimes")
        elif bad == repeats:
            fact = phrase("{call} is bad {n} times of {n}", call=name, n=repeats)
            scales.speaks_against(DECISIVE, fact, "repeat")
    if repeated or plain == "no":
        health.weigh_hints(case, scales)
    history.weigh_places(case, scales, is_lasting=False)
    _weigh_against(case, scales)


def _weigh_against(case: Case, scales: Scales) -> None:
    is_steady = case.came_back("plain") == "yes" and not case.wavers
    if is_steady and not any(each.repeats for each in case.incident.arbitrations):
        scales.speaks_against(STRONG, phrase("the fault came back in the replay"))
    elif is_steady and case.came_back("traced") == "yes":
        fact = phrase("the fault came back each time the step was run again: it was no single event")
        scales.speaks_against(SLIGHT, fact)
    if case.came_back("synchronous") == "no" and case.came_back("plain") == "yes":
        scales.speaks_against(STRONG, phrase("it vanishes under synchronisation, which no device fault does"))
    if case.came_back("marker") == "yes" or case.origins_of(OriginKind.NEVER_WRITTEN):
        scales.speaks_against(DECISIVE, phrase("memory that nobody had written explains it"))
    if case.incident.changed_after_fetch:
        scales.speaks_against(DECISIVE, phrase("the batch changed after it had been fetched"))
    if not case.incident.arbitrations:
        scales.not_tested(phrase("the suspect call again on the same device"))
    if not health.was_read(case):
        scales.not_tested(phrase("the error counters of the device"))
