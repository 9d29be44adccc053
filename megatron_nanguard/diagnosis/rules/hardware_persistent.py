"""The device, always: the same call fails here and passes on a second device.

Without a second device it is never convicted, unless it reports an error itself that it could not mend.
"""

from __future__ import annotations

from megatron_nanguard.diagnosis import health, history
from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.suspect_call import is_always_bad, name_call, reference_outcome
from megatron_nanguard.diagnosis.weighing import CEILING, DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.arbitration import Arbitration
from megatron_nanguard.records.causes import Cause
from megatron_nanguard.records.incident import RankedCause
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.records.rank_words import name_ranks

BY_HISTORY = 0.4
"""What keeps to a device over several steps or attempts is a suspicion, and no more than that."""


def judge(case: Case) -> RankedCause | None:
    """Convict a device against another one, or by its own word; suspect it where faults keep to it."""
    always_bad = [each for each in case.usable_calls if is_always_bad(each)]
    convicted = [each for each in always_bad if each.peer == "finite"]
    reported = health.lost_data(case) if health.came_back(case) else ()
    if not (convicted or reported or history.recurrences(case)):
        return None
    usual = CEILING if convicted else BY_HISTORY
    scales = Scales(Cause.HARDWARE_PERSISTENT, prior=-2.5, ceiling=health.REPORTED_CEILING if reported else usual)
    health.weigh_lost_data(case, reported, scales)
    for arbitration in always_bad:
        _compare(arbitration, scales)
    if ranks := case.ranks_alike:
        scales.speaks_against(
            STRONG, phrase("the same operator fails on {ranks}, on devices of their own", ranks=name_ranks(ranks))
        )
    health.weigh_hints(case, scales)
    history.weigh_places(case, scales, is_lasting=True)
    if not health.was_read(case):
        scales.not_tested(phrase("the error counters of the device"))
    if not convicted:
        scales.not_tested(phrase("the accused call on a second device"))
    return scales.reading()


def _compare(arbitration: Arbitration, scales: Scales) -> None:
    """A call that fails here every time, against a second device and a reference."""
    call = name_call(arbitration)
    if arbitration.peer == "bad":
        scales.speaks_against(DECISIVE, phrase("{call} is bad on a second device too", call=call), "peer")
    if arbitration.peer != "finite":
        return
    told = phrase(
        "{call} is bad {repeats} times of {repeats} here, and finite on {peer}",
        call=call,
        repeats=arbitration.repeats,
        peer=_peer(arbitration),
    )
    scales.speaks_for(DECISIVE, told, "peer")
    if reference_outcome(arbitration) == "finite":
        scales.speaks_for(HINT, phrase("its reference in higher precision is finite"), "reference")
    if reference_outcome(arbitration) == "bad":
        scales.speaks_against(STRONG, phrase("its reference in higher precision is bad too"), "reference")


def _peer(arbitration: Arbitration) -> str:
    peer = phrase("another device")
    if arbitration.peer_rank is not None:
        peer = phrase("the device of rank {rank}", rank=arbitration.peer_rank)
    return phrase("{peer} ({device})", peer=peer, device=arbitration.peer_device) if arbitration.peer_device else peer
