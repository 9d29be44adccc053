"""Which calls of a rank stand accused, by its trace, and what was caught of them in the pass after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from megatron_nanguard.arbitration.call_catcher import COMMUNICATES, CaughtCall, placed, uncaught
from megatron_nanguard.records.trace import GRADIENT_OF, OriginKind, RankTrace, TracedOrigin

CALLED: Final = frozenset({OriginKind.OPERATOR, OriginKind.OUTSIDE, OriginKind.SCALER})
"""Origins whose event is an operator, or is read by one, or is followed by the operator that read it first."""
WHY_NOT: Final[Mapping[OriginKind, str]] = {
    OriginKind.COMMUNICATION: COMMUNICATES,
    OriginKind.NEVER_WRITTEN: "memory that nobody wrote was read; there is no call to make again",
    OriginKind.UNSEEN: "the kernel that wrote it is not seen, and belongs to no autograd Function",
}


def suspect_events(trace: RankTrace) -> frozenset[int]:
    """Running numbers of the events whose calls a `CallCatcher` should keep."""
    return frozenset(_called(origin) for origin in trace.origins if _why_no_call(origin) is None)


def suspect_function(trace: RankTrace) -> TracedOrigin | None:
    """The first origin inside an autograd Function whose kernel nobody saw; what a `RegionCatcher` should keep.

    Its `place` says when to ask: micro-batch and module. The class is named by `function_name`.
    """
    return next((origin for origin in trace.origins if function_name(origin)), None)


def function_name(origin: TracedOrigin) -> str:
    """Name of the autograd node or Function that an unseen write belongs to; empty when there is none."""
    if origin.kind is not OriginKind.UNSEEN:
        return ""
    return origin.place.node or origin.place.forward_operator or ""


def caught_calls(
    trace: RankTrace, step: int, calls: Mapping[int, CaughtCall], region: CaughtCall | None = None
) -> tuple[CaughtCall, ...]:
    """One call per origin, in their order, with the place that the trace knows; where there is none, why.

    Args:
        trace: of this rank, from the pass that found the origins.
        step: as the training log counts it.
        calls: what the `CallCatcher` kept.
        region: what the `RegionCatcher` kept, if there was one.
    """
    with_region = suspect_function(trace)
    return tuple(
        placed(_call(origin, trace.rank, calls, region if origin is with_region else None), step, origin)
        for origin in trace.origins
    )


def gone_calls(trace: RankTrace, step: int) -> tuple[CaughtCall, ...]:
    """The same where the fault was gone in the pass that was to save them: what ran then did not fail."""
    why_not = "the fault was gone in the pass that was to save it"
    return tuple(
        placed(uncaught(trace.rank, origin.event, origin.operator, why_not), step, origin) for origin in trace.origins
    )


def _call(origin: TracedOrigin, rank: int, calls: Mapping[int, CaughtCall], region: CaughtCall | None) -> CaughtCall:
    if region is not None:
        return region
    why_not = _why_no_call(origin)
    if why_not is not None:
        return uncaught(rank, origin.event, origin.operator, why_not)
    call = calls.get(_called(origin))
    if call is None:
        return uncaught(rank, origin.event, origin.operator, "the pass that was to save it did not come so far")
    if origin.kind is not OriginKind.OUTSIDE and not _is_same(origin.operator, call.saved.operator):
        why_not = f"{call.saved.operator} ran under its number in the pass that was to save it"
        return uncaught(rank, origin.event, origin.operator, why_not)
    return call


def _called(origin: TracedOrigin) -> int:
    return origin.event if origin.reader is None else origin.reader


def _why_no_call(origin: TracedOrigin) -> str | None:
    """Why no operator stands for an origin; None where one does."""
    if origin.kind not in CALLED:
        return WHY_NOT[origin.kind]
    if origin.kind is OriginKind.OUTSIDE and origin.operator.startswith(GRADIENT_OF):
        return "it was in the gradient buffer before any operator added to it"
    return None


def _is_same(label: str, operator: str) -> bool:
    """`add.Tensor` and `log` are how the trace writes `aten.add.Tensor` and `aten.log.default`."""
    return operator.partition(".")[2].removesuffix(".default") == label
