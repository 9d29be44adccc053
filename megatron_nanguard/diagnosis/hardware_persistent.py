"""The device, always: the same call fails here and passes on a second device. Without a second device, never."""

from __future__ import annotations

from megatron_nanguard.diagnosis import facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.diagnosis.wording import name_ranks
from megatron_nanguard.records.incident import Cause


def judge(evidence: Evidence) -> Cause | None:
    """Convict a device only against another one."""
    convicted = [each for each in facts.usable(evidence) if facts.is_always_bad(each) and each.peer == "finite"]
    if not convicted:
        return None
    scales = Scales("hardware_persistent", prior=-2.5)
    for arbitration in convicted:
        times = f"{arbitration.repeats} times of {arbitration.repeats}"
        peer = "another device" if arbitration.peer_rank is None else f"the device of rank {arbitration.peer_rank}"
        scales.speaks_for(DECISIVE, f"{facts.tried(arbitration)} is bad {times} here, and finite on {peer}", "peer")
        if facts.reference(arbitration) == "finite":
            scales.speaks_for(HINT, "its reference in higher precision is finite", "reference")
        if facts.reference(arbitration) == "bad":
            scales.speaks_against(STRONG, "its reference in higher precision is bad too", "reference")
    if ranks := facts.alike(evidence):
        scales.speaks_against(STRONG, f"the same operator fails on {name_ranks(ranks)}, on devices of their own")
    _history({arbitration.rank for arbitration in convicted}, evidence, scales)
    scales.not_tested("what the device reports of itself")
    return scales.reading()


def _history(accused: set[int], evidence: Evidence, scales: Scales) -> None:
    before = [earlier for earlier in evidence.earlier if accused & set(earlier.ranks)]
    if before:
        scales.speaks_for(HINT, f"the same rank was the origin in step {before[-1].step} already")
