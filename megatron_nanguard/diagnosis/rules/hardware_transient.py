"""The device, once: the same call on the same inputs was bad then and is finite now."""

from __future__ import annotations

from megatron_nanguard.diagnosis import health, history, origin_facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, SLIGHT, STRONG, Scales
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import RankedCause
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.trace import OriginKind

WITHOUT_THE_CALL = 0.4
"""A clean replay alone is a transient, a race or chance: it never convicts the device."""


def judge(evidence: Evidence) -> RankedCause | None:
    """Weigh a fault that went away; only the accused call itself can say more than that."""
    again = [arbitration for arbitration in origin_facts.usable(evidence) if arbitration.repeats]
    reported = () if health.came_back(evidence) else health.lost_data(evidence)
    usual = 0.9 if again else WITHOUT_THE_CALL
    scales = Scales(Cause.HARDWARE_TRANSIENT, prior=-2.0, ceiling=health.REPORTED_CEILING if reported else usual)
    health.weigh_lost_data(evidence, reported, scales)
    health.weigh_elsewhere(evidence, scales)
    plain = evidence.came_back("plain")
    if plain == "no":
        scales.speaks_for(HINT, phrase("the same step on the same data was finite in the replay"))
        if len(evidence.ranks.bad_before) == 1:
            told = phrase("only rank {rank} was bad before the reduction", rank=evidence.ranks.bad_before[0])
            scales.speaks_for(HINT, told)
    if evidence.wavers():
        scales.speaks_for(HINT, phrase("there in one traced replay, gone in the next, which differs in nothing"))
    for arbitration in again:
        call, repeats, bad = origin_facts.tried(arbitration), arbitration.repeats, arbitration.repeats_bad
        if bad == 0:
            told = phrase("{call} is finite {n} times of {n} on the inputs it failed on", call=call, n=repeats)
            scales.speaks_for(STRONG + HINT, told, "repeat")
        elif bad < repeats:
            told = phrase("{call} is bad {bad} times of {n} on equal inputs", call=call, bad=bad, n=repeats)
            scales.speaks_for(STRONG + HINT, told, "sometimes")
        else:
            told = phrase("{call} is bad {n} times of {n}", call=call, n=repeats)
            scales.speaks_against(DECISIVE, told, "repeat")
    if again or plain == "no":
        health.weigh_hints(evidence, scales)
    history.weigh_places(evidence, scales, is_lasting=False)
    _against(evidence, scales)
    return scales.reading()


def _against(evidence: Evidence, scales: Scales) -> None:
    is_steady = evidence.came_back("plain") == "yes" and not evidence.wavers()
    if is_steady and not any(each.repeats for each in evidence.arbitrations):
        scales.speaks_against(STRONG, phrase("the fault came back in the replay"))
    elif is_steady and evidence.came_back("traced") == "yes":
        scales.speaks_against(
            SLIGHT, phrase("the fault came back each time the step was run again: it was no single event")
        )
    if evidence.came_back("synchronous") == "no" and evidence.came_back("plain") == "yes":
        scales.speaks_against(STRONG, phrase("it vanishes under synchronisation, which no device fault does"))
    if evidence.came_back("marker") == "yes" or any(
        True for _ in origin_facts.of_kind(evidence, OriginKind.NEVER_WRITTEN)
    ):
        scales.speaks_against(DECISIVE, phrase("memory that nobody had written explains it"))
    if evidence.batch_changed:
        scales.speaks_against(DECISIVE, phrase("the batch changed after it had been fetched"))
    if not evidence.arbitrations:
        scales.not_tested(phrase("the accused call again on the same device"))
    if not health.was_read(evidence):
        scales.not_tested(phrase("the error counters of the device"))
