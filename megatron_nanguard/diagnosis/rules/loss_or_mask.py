"""The loss or a mask: a division by no tokens, a row that is masked as a whole, an overflow in an unused branch."""

from __future__ import annotations

from megatron_nanguard.diagnosis import origin_facts
from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.records.incident import Origin
from megatron_nanguard.records.phrase import name_ranks, phrase


def judge(case: Case, scales: Scales) -> None:
    """Look for NaN that a mask or a denominator makes of finite values."""
    _weigh_empty_microbatches(case, scales)
    for origin in case.masked_softmaxes:
        fact = phrase("a row with everything masked is 0/0 in {origin}", origin=case.name(origin))
        scales.speaks_for(DECISIVE, fact, "softmax")
    for origin in case.origins_in(*origin_facts.EXPONENTIAL):
        _weigh_unused_branch(origin, case, scales)
    for origin in case.origins_in("sub", "div", "log", "mul"):
        if origin_facts.is_in_loss(origin):
            fact = phrase("it began in the loss function: {origin}", origin=case.name(origin))
            scales.speaks_for(HINT, fact, "in loss")
    if case.incident.audit:
        scales.speaks_against(STRONG, phrase("weights, moments or data were bad before the loss was computed"))
    if case.went_away:
        scales.speaks_against(STRONG, phrase("the same loss on the same batch was finite in the replay"))


def _weigh_empty_microbatches(case: Case, scales: Scales) -> None:
    """A micro-batch without tokens counts fully only if the loss went bad there, or if no origin is known."""
    if not case.incident.zero_tokens:
        return
    spots = {(spot.rank, spot.microbatch) for spot in case.incident.zero_tokens}
    fact = phrase(
        "no valid token in micro-batch {microbatch} of {ranks}",
        microbatch=case.incident.zero_tokens[0].microbatch,
        ranks=name_ranks(sorted({rank for rank, _ in spots})),
    )
    is_in_that_loss = any(
        origin_facts.is_in_loss(origin)
        and any(origin.rank == rank and origin.microbatch in (microbatch, None) for rank, microbatch in spots)
        for origin in case.incident.origin
    )
    if is_in_that_loss:
        scales.speaks_for(DECISIVE, phrase("{fact}, where the loss went bad", fact=fact))
    elif case.incident.origin:
        scales.speaks_for(HINT, fact)
    else:
        scales.speaks_for(STRONG, fact)


def _weigh_unused_branch(origin: Origin, case: Case, scales: Scales) -> None:
    """clamp, min or where takes the other branch, so the forward is finite; the backward multiplies 0 by Inf."""
    if "inf" not in origin.pattern or not case.has_finite_losses:
        return
    fact = phrase(
        "{origin} overflows although every loss is finite: its branch is not picked",
        origin=case.name(origin),
    )
    scales.speaks_for(DECISIVE if origin_facts.is_in_loss(origin) else STRONG + HINT, fact, "branch")
