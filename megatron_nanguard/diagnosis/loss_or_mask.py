"""The loss or a mask: an empty denominator, a row with everything masked, an overflow in the branch not picked."""

from __future__ import annotations

from megatron_nanguard.diagnosis import facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.diagnosis.wording import name_ranks
from megatron_nanguard.records.incident import Cause, Origin


def judge(evidence: Evidence) -> Cause | None:
    """Look for what masks and denominators do to finite values."""
    scales = Scales("loss_or_mask", prior=-1.0)
    _empty_denominators(evidence, scales)
    for origin in facts.operators(evidence, "softmax", "log_softmax", "scaled_dot_product_attention"):
        if origin.pattern == "nan" and origin.phase in ("forward", "recompute"):
            scales.speaks_for(DECISIVE, f"a row with everything masked is 0/0 in {facts.named(origin)}", "softmax")
    for origin in facts.operators(evidence, *facts.EXPONENTIAL):
        _branch_not_picked(origin, evidence, scales)
    for origin in facts.operators(evidence, "sub", "div", "log", "mul"):
        if facts.is_in_loss(origin):
            scales.speaks_for(HINT, f"it began in the loss function: {facts.named(origin)}", "in loss")
    if evidence.audit:
        scales.speaks_against(STRONG, "weights, moments or data were bad before the loss was computed")
    if evidence.came_back("plain") == "no":
        scales.speaks_against(STRONG, "the same loss on the same batch was finite in the replay")
    return scales.reading()


def _empty_denominators(evidence: Evidence, scales: Scales) -> None:
    """An empty micro-batch is guilty only where something went bad in the loss, or nothing more is known."""
    if not evidence.zero_tokens:
        return
    spots = {(spot.rank, spot.microbatch) for spot in evidence.zero_tokens}
    told = f"no valid token in micro-batch {evidence.zero_tokens[0].microbatch} of "
    told += name_ranks(sorted({rank for rank, _ in spots}))
    on_the_spot = any(
        facts.is_in_loss(origin)
        and any(origin.rank == rank and origin.microbatch in (microbatch, None) for rank, microbatch in spots)
        for origin in evidence.origins
    )
    if on_the_spot:
        scales.speaks_for(DECISIVE, f"{told}, where the loss went bad")
    elif evidence.origins:
        scales.speaks_for(HINT, told)
    else:
        scales.speaks_for(STRONG, told)


def _branch_not_picked(origin: Origin, evidence: Evidence, scales: Scales) -> None:
    """The forward survives because clamp, min or where takes the other branch; the backward multiplies 0 by Inf."""
    if "inf" not in origin.pattern or not facts.has_finite_losses(evidence):
        return
    told = f"{facts.named(origin)} overflows although every loss is finite: its branch is not picked"
    scales.speaks_for(DECISIVE if facts.is_in_loss(origin) else STRONG + HINT, told, "branch")
