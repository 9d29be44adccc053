"""Memory: read before it was written, overwritten while in use, or waited for too late."""

from __future__ import annotations

from megatron_nanguard.diagnosis import facts
from megatron_nanguard.diagnosis.evidence import Evidence
from megatron_nanguard.diagnosis.weighing import DECISIVE, HINT, STRONG, Scales
from megatron_nanguard.diagnosis.wording import name_ranks
from megatron_nanguard.records.incident import Cause
from megatron_nanguard.records.trace import OriginKind


def judge(evidence: Evidence) -> Cause | None:
    """Read the passes against each other, and positions that follow memory."""
    scales = Scales("uninitialised_or_race", prior=-1.5)
    for origin in facts.of_kind(evidence, OriginKind.NEVER_WRITTEN):
        scales.speaks_for(DECISIVE, f"memory was read that nobody had written: {facts.named(origin)}", "never written")
    for origin in evidence.origins:
        if facts.is_laid_out_like_memory(origin):
            assert origin.facts is not None
            told = f"bad positions follow memory, not values: {origin.facts.layout} of {facts.named(origin)}"
            # An operator that was seen to write the whole of it can leave such positions by chance.
            weight = HINT if origin.kind is OriginKind.OPERATOR else STRONG + HINT
            scales.speaks_for(weight, told, "layout")
        if facts.is_outside(origin, "gradient of"):
            told = f"the gradient buffer was bad before anything was added: {facts.named(origin)}"
            scales.speaks_for(DECISIVE, told, "stale buffer")
        if origin.kind is OriginKind.UNSEEN and "expert" in origin.module:
            told = f"an expert's gradient that nobody was seen to write: {facts.named(origin)}"
            scales.speaks_for(HINT, told, "expert")
    if evidence.batch_changed:
        ranks = name_ranks(sorted({spot.rank for spot in evidence.batch_changed}))
        scales.speaks_for(DECISIVE, f"the batch of {ranks} changed after it had been fetched")
    _passes(evidence, scales)
    _history(evidence, scales)
    return scales.reading()


def _passes(evidence: Evidence, scales: Scales) -> None:
    """Observing cures races, so that what each pass saw is told in the order of how much it observes."""
    plain, traced = evidence.came_back("plain"), evidence.came_back("traced")
    synchronous, marker = evidence.came_back("synchronous"), evidence.came_back("marker")
    if marker == "yes" and plain == "no":
        scales.speaks_for(DECISIVE, "gone in the plain replay, back with fresh buffers filled with a marker")
    if plain in ("yes", "partly") and synchronous == "no":
        scales.speaks_for(DECISIVE, "vanishes under synchronisation")
    elif plain in ("yes", "partly") and traced == "no":
        scales.speaks_for(STRONG, "comes back in the plain replay, vanishes when every operator is watched")
    if plain == "partly":
        scales.speaks_for(HINT, "the replay went bad in other places")
    if plain == "no":
        scales.speaks_for(HINT, "gone in the plain replay")
    if evidence.exact is False:
        scales.speaks_for(HINT, "the plain replay differs from the first pass in its bits")
    is_left_over = any(facts.is_outside(origin, "gradient of") for origin in evidence.origins)
    if plain == "yes" and traced == "yes" and evidence.exact and not is_left_over:
        scales.speaks_against(STRONG, "the fault came back at the same place, bit for bit, watched or not")
    if marker == "no":
        scales.speaks_against(HINT, "fresh buffers filled with a marker reached no gradient")
    if plain == "no" and synchronous is None:
        scales.not_tested("a replay that waits after every operator")
    if plain == "no" and marker is None:
        scales.not_tested("a replay with fresh buffers filled with a marker")


def _history(evidence: Evidence, scales: Scales) -> None:
    """A race wanders; what keeps to one rank points at its device."""
    places = {earlier.ranks for earlier in evidence.earlier}
    if len(places) > 1:
        told = f"{len(evidence.earlier)} earlier incidents of the run without a clear cause, on different ranks"
        scales.speaks_for(HINT, told)
