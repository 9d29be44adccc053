"""The device, once: the same call on the same inputs was bad then and is finite now."""

from __future__ import annotations

from megatron_nanguard.diagnosis import facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.incident import Cause
from megatron_nanguard.records.trace import OriginKind

WITHOUT_THE_CALL = 0.4
"""A clean replay alone is a transient, a race or chance: it never convicts the device."""


def judge(evidence: Evidence) -> Cause | None:
    """Weigh a fault that went away; only the accused call itself can say more than that."""
    again = [arbitration for arbitration in facts.usable(evidence) if arbitration.repeats]
    scales = Scales("hardware_transient", prior=-2.0, ceiling=0.9 if again else WITHOUT_THE_CALL)
    plain = evidence.came_back("plain")
    if plain == "no":
        scales.speaks_for(HINT, "the same step on the same data was finite in the replay")
        if len(evidence.ranks.bad_before) == 1:
            scales.speaks_for(HINT, f"only rank {evidence.ranks.bad_before[0]} was bad before the reduction")
    for arbitration in again:
        call, repeats, bad = facts.tried(arbitration), arbitration.repeats, arbitration.repeats_bad
        if bad == 0:
            told = f"{call} is finite {repeats} times of {repeats} on the inputs it failed on"
            scales.speaks_for(STRONG + HINT, told, "repeat")
        elif bad < repeats:
            scales.speaks_for(STRONG + HINT, f"{call} is bad {bad} times of {repeats} on equal inputs", "sometimes")
        else:
            scales.speaks_against(DECISIVE, f"{call} is bad {repeats} times of {repeats}", "repeat")
    _against(evidence, scales)
    return scales.reading()


def _against(evidence: Evidence, scales: Scales) -> None:
    if evidence.came_back("plain") == "yes" and not any(each.repeats for each in evidence.arbitrations):
        scales.speaks_against(STRONG, "the fault came back in the replay")
    if evidence.came_back("synchronous") == "no" and evidence.came_back("plain") == "yes":
        scales.speaks_against(STRONG, "it vanishes under synchronisation, which no device fault does")
    if evidence.came_back("marker") == "yes" or any(True for _ in facts.of_kind(evidence, OriginKind.NEVER_WRITTEN)):
        scales.speaks_against(DECISIVE, "memory that nobody had written explains it")
    if evidence.batch_changed:
        scales.speaks_against(DECISIVE, "the batch changed after it had been fetched")
    if ranks := {rank for earlier in evidence.earlier for rank in earlier.ranks} - set(evidence.ranks.bad_before):
        scales.speaks_against(HINT, f"earlier incidents were on other ranks too, such as {min(ranks)}")
    if not evidence.arbitrations:
        scales.not_tested("the accused call again on the same device")
    scales.not_tested("what the device reports of itself")
