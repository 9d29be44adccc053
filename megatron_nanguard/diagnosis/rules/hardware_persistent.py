"""A lasting fault of the device: the same call fails here and passes on a second device.

Without a second device it stays a suspicion, unless the device itself reports an error that it could not correct.
"""

from __future__ import annotations

from megatron_nanguard.diagnosis import health, history
from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.suspect_call import is_always_bad, name_call, reference_outcome
from megatron_nanguard.diagnosis.weighing import CEILING, DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.phrase import name_ranks, phrase
from megatron_nanguard.records.suspect_call import Arbitration

BY_HISTORY = 0.4
"""Ceiling where faults only recur on one device, over several steps or attempts."""


def judge(case: Case, scales: Scales) -> None:
    """Compare with another device, read what the device reports, and look for recurrences on it."""
    always_bad = [each for each in case.usable_calls if is_always_bad(each)]
    fails_here_only = [each for each in always_bad if each.peer == "finite"]
    reported = health.suspect_changes(case, "uncorrectable") if health.came_back(case) else ()
    if not (fails_here_only or reported or history.recurrences(case)):
        return
    usual = CEILING if fails_here_only else BY_HISTORY
    scales.ceiling = health.REPORTED_CEILING if reported else usual
    health.weigh_lost_data(case, reported, scales)
    for call in always_bad:
        _weigh_comparison(call, scales)
    if ranks := case.ranks_alike:
        fact = phrase("the same operator fails on {ranks}, on devices of their own", ranks=name_ranks(ranks))
        scales.speaks_against(STRONG, fact)
    health.weigh_hints(case, scales)
    history.weigh_places(case, scales, is_lasting=True)
    if not health.was_read(case):
        scales.not_tested(phrase("the error counters of the device"))
    if not fails_here_only:
        scales.not_tested(phrase("the suspect call on a second device"))


def _weigh_comparison(call: Arbitration, scales: Scales) -> None:
    """Compare a call that fails here every time with a second device and with a reference."""
    name = name_call(call)
    if call.peer == "bad":
        scales.speaks_against(DECISIVE, phrase("{call} is bad on a second device too", call=name), "peer")
    if call.peer != "finite":
        return
    fact = phrase(
        "{call} is bad {repeats} times of {repeats} here, and finite on {peer}",
        call=name,
        repeats=call.repeats,
        peer=_peer(call),
    )
    scales.speaks_for(DECISIVE, fact, "peer")
    if reference_outcome(call) == "finite":
        scales.speaks_for(HINT, phrase("its reference in higher precision is finite"), "reference")
    if reference_outcome(call) == "bad":
        scales.speaks_against(STRONG, phrase("its reference in higher precision is bad too"), "reference")


def _peer(call: Arbitration) -> str:
    peer = phrase("another device")
    if call.peer_rank is not None:
        peer = phrase("the device of rank {rank}", rank=call.peer_rank)
    return phrase("{peer} ({device})", peer=peer, device=call.peer_device) if call.peer_device else peer
