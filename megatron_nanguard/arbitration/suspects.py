"""Which calls of a rank are suspect by its trace, and what was saved of them in the pass after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from megatron_nanguard.arbitration.call_catcher import COMMUNICATES, CaughtCall, unsaved_call, with_place
from megatron_nanguard.arbitration.function_catcher import FunctionCatcher
from megatron_nanguard.records.trace import GRADIENT_OF, MARKER_FILL, OriginKind, RankTrace, TracedOrigin

CALLED: Final = frozenset({OriginKind.OPERATOR, OriginKind.OUTSIDE, OriginKind.SCALER})
"""Origins with an operator to save: the event is one, or was read by one."""
WHY_NOT: Final[Mapping[OriginKind, str]] = {
    OriginKind.COMMUNICATION: COMMUNICATES,
    OriginKind.NEVER_WRITTEN: "memory that nobody wrote was read; there is no call to make again",
    OriginKind.UNSEEN: "the kernel that wrote it is not seen, and belongs to no autograd Function",
}


def suspect_events(trace: RankTrace) -> frozenset[int]:
    """Numbers of the events whose calls a `CallCatcher` should save."""
    return frozenset(_called(origin) for origin in trace.origins if _why_no_call(origin) is None)


def function_catchers(trace: RankTrace) -> dict[int, FunctionCatcher]:
    """Make a catcher for each origin inside an autograd Function whose kernel the tracer did not see, by its event."""
    named = {origin.event: (origin, function_name(origin)) for origin in trace.origins if function_name(origin)}
    is_marked = MARKER_FILL in trace.labels
    return {
        event: FunctionCatcher.of(origin, name, trace.rank, in_marked_memory=is_marked)
        for event, (origin, name) in named.items()
    }


def function_name(origin: TracedOrigin) -> str:
    """The forward or backward of an autograd Function in which an unseen kernel wrote, or left memory unwritten.

    Empty where there is none.

    Returns:
        "_Linear.forward" or "_LinearBackward".
    """
    if origin.kind not in (OriginKind.UNSEEN, OriginKind.NEVER_WRITTEN):
        return ""
    if origin.operator.endswith((".forward", "Backward")):
        return origin.operator
    return (origin.place.node or "") if origin.kind is OriginKind.UNSEEN else ""


def caught_calls(
    trace: RankTrace, step: int, calls: Mapping[int, CaughtCall], functions: Mapping[int, CaughtCall] | None = None
) -> tuple[CaughtCall, ...]:
    """Return one call per origin, in their order, with its place in the trace; if it was not saved, it says why.

    Args:
        trace: of this rank, from the pass that found the origins.
        step: as the training log counts it.
        calls: what the `CallCatcher` saved.
        functions: what the catchers of `function_catchers` saved, by the event of the origin.
    """
    found = functions or {}
    return tuple(
        with_place(_call(origin, trace.rank, calls, found.get(origin.event)), step, origin) for origin in trace.origins
    )


def gone_calls(trace: RankTrace, step: int) -> tuple[CaughtCall, ...]:
    """Return one call per origin where the fault was gone in the pass that was to save them: none failed there."""
    why_not = "the fault was gone in the pass that was to save it"
    return tuple(
        with_place(unsaved_call(trace.rank, origin.event, origin.operator, why_not), step, origin)
        for origin in trace.origins
    )


def _call(origin: TracedOrigin, rank: int, calls: Mapping[int, CaughtCall], function: CaughtCall | None) -> CaughtCall:
    if function is not None:
        return function
    why_not = _why_no_call(origin)
    if why_not is not None:
        return unsaved_call(rank, origin.event, origin.operator, why_not)
    call = calls.get(_called(origin))
    if call is None:
        return unsaved_call(rank, origin.event, origin.operator, "the pass that was to save it did not come so far")
    # The trace writes `log` for `aten.log.default`.
    is_same = call.saved.operator.partition(".")[2].removesuffix(".default") == origin.operator
    if origin.kind is not OriginKind.OUTSIDE and not is_same:
        why_not = f"{call.saved.operator} ran under its number in the pass that was to save it"
        return unsaved_call(rank, origin.event, origin.operator, why_not)
    return call


def _called(origin: TracedOrigin) -> int:
    return origin.event if origin.reader is None else origin.reader


def _why_no_call(origin: TracedOrigin) -> str | None:
    """Why an origin has no operator to save; None where it has one."""
    if origin.kind not in CALLED:
        return WHY_NOT[origin.kind]
    if origin.kind is OriginKind.OUTSIDE and origin.operator.startswith(GRADIENT_OF):
        return "it was in the gradient buffer before any operator added to it"
    return None
