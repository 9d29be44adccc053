"""Memory that was read before it was written, or overwritten while it was in use."""

from __future__ import annotations

from typing import Final

from megatron_nanguard.diagnosis import history, origin_facts
from megatron_nanguard.diagnosis.case import Case
from megatron_nanguard.diagnosis.suspect_call import depends_on_memory, is_bad_in_zeros, name_call
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, SLIGHT, STRONG, Scales
from megatron_nanguard.records.phrase import name_ranks, phrase
from megatron_nanguard.records.suspect_call import Arbitration
from megatron_nanguard.records.trace import GRADIENT_OF, OriginKind

ONLY_LOSSES: Final = phrase(
    "all that is finite in the step and in its replay is equal bit for bit, but of {ranks} only losses could be "
    "compared"
)


def judge(case: Case, scales: Scales) -> None:
    """Compare the replays with each other, and look for bad positions that follow memory."""
    elsewhere = [case.origin_of(call) for call in case.usable_calls if is_bad_in_zeros(call)]
    for origin in case.origins_of(OriginKind.NEVER_WRITTEN):
        if origin in elsewhere:
            continue
        fact = phrase("memory was read that nobody had written: {origin}", origin=case.name(origin))
        scales.speaks_for(DECISIVE, fact, "never written")
    for origin in case.external_origins(GRADIENT_OF):
        fact = phrase("the gradient buffer was bad before anything was added: {origin}", origin=case.name(origin))
        scales.speaks_for(DECISIVE, fact, "stale buffer")
    for origin in case.incident.origin:
        if origin_facts.is_laid_out_like_memory(origin):
            assert origin.facts is not None
            fact = phrase(
                "bad positions follow memory, not values: {layout} of {origin}",
                layout=origin.facts.layout,
                origin=case.name(origin),
            )
            # An operator that was seen to write the whole of it can leave such positions by chance.
            weight = HINT if origin.kind is OriginKind.OPERATOR else STRONG + HINT
            scales.speaks_for(weight, fact, "layout")
        is_hidden = origin.kind is OriginKind.UNSEEN and not origin_facts.is_region(origin)
        if is_hidden and "expert" in origin.module:
            fact = phrase(
                "an expert's gradient that nobody was seen to write: {origin}",
                origin=case.name(origin),
            )
            scales.speaks_for(HINT, fact, "expert")
    if case.incident.changed_after_fetch:
        ranks = name_ranks(sorted({spot.rank for spot in case.incident.changed_after_fetch}))
        scales.speaks_for(DECISIVE, phrase("the batch of {ranks} changed after it had been fetched", ranks=ranks))
    for call in case.usable_calls:
        _weigh_call(call, scales)
    _weigh_passes(case, scales)
    _weigh_history(case, scales)


def _weigh_call(call: Arbitration, scales: Scales) -> None:
    """A call whose result follows the memory that it is given reads some of it before it writes it."""
    name, filled = name_call(call), call.zero_filled
    if depends_on_memory(call):
        fact = phrase(
            "{call} is bad {bad} times of {n}, and never where fresh memory is filled with zeros first",
            call=name,
            bad=call.repeats_bad,
            n=call.repeats - filled,
        )
        scales.speaks_for(DECISIVE, fact, "filled")
    elif is_bad_in_zeros(call):
        fact = phrase("{call} is bad {n} times of {n}, whatever fresh memory holds", call=name, n=call.repeats)
        scales.speaks_against(STRONG, fact, "filled")


def _weigh_passes(case: Case, scales: Scales) -> None:
    """Observing a race can make it vanish: a replay that observes more and is clean speaks for one."""
    plain, traced = case.came_back("plain"), case.came_back("traced")
    synchronous, marker = case.came_back("synchronous"), case.came_back("marker")
    if marker == "yes" and plain == "no":
        fact = phrase("gone in the plain replay, back when all new memory is filled with NaN before it is used")
        scales.speaks_for(DECISIVE, fact)
    if plain in ("yes", "partly") and synchronous == "no":
        scales.speaks_for(DECISIVE, phrase("vanishes under synchronisation"))
    elif plain in ("yes", "partly") and traced == "no":
        fact = phrase("comes back in the plain replay, vanishes when every operator is watched")
        scales.speaks_for(STRONG, fact)
    if case.wavers:
        fact = phrase("there in one traced replay, gone in the next, which differs in nothing")
        scales.speaks_for(STRONG, fact)
    if plain == "partly":
        scales.speaks_for(HINT, phrase("the replay went bad in other places"))
    if plain == "no":
        scales.speaks_for(HINT, phrase("gone in the plain replay"))
    _weigh_bits(case, scales)
    is_left_over = bool(case.external_origins(GRADIENT_OF))
    if plain == "yes" and traced == "yes" and case.incident.replay.exact and not (is_left_over or case.wavers):
        fact = phrase("the fault came back at the same place, bit for bit, watched or not")
        scales.speaks_against(STRONG, fact)
    if marker == "no":
        fact = phrase("with all new memory filled with NaN before it is used, none of it reached a gradient")
        scales.speaks_against(HINT, fact)
    if plain == "no" and synchronous is None:
        scales.not_tested(phrase("a replay that waits after every operator"))
    if plain == "no" and marker is None:
        scales.not_tested(phrase("a replay with all new memory filled with NaN before it is used"))


def _weigh_bits(case: Case, scales: Scales) -> None:
    """Compare the bits of what was finite both times: a difference there means that more than the fault changed."""
    if case.incident.replay.finite_exact is False:
        fact = phrase("gradients or losses that are finite in the step and in its replay differ in their bits")
        scales.speaks_for(HINT, fact)
    elif case.incident.replay.exact is False and not case.went_away:
        scales.speaks_for(HINT, phrase("the plain replay differs from the step in its bits"))
    if case.incident.replay.finite_exact and case.went_away:
        # A race mostly changes other values too, but need not; where every gradient was bad, little can be compared.
        fact = phrase("all gradients and losses that are finite in the step and in its replay are equal bit for bit")
        if case.incident.replay.only_losses:
            fact = ONLY_LOSSES.format(ranks=name_ranks(case.incident.replay.only_losses))
        scales.speaks_against(SLIGHT / 2 if case.incident.replay.only_losses else SLIGHT, fact)


def _weigh_history(case: Case, scales: Scales) -> None:
    """A race shows in different places. A fault that stays on one rank points to a device, in one step to the data."""
    if history.num_places(case) > 1:
        number = sum(1 for _ in history.with_other_data(case))
        fact = phrase("{number} earlier incidents without a clear cause, in different places", number=number)
        scales.speaks_for(HINT, fact)
    for earlier in history.same_step_elsewhere(case):
        fact = phrase("attempt {attempt} was bad in the same step, on other devices", attempt=earlier.run_id)
        scales.speaks_against(STRONG, fact, "again")
