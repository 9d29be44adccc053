"""Which calls of a trace are suspect, and which call or reason each origin gets afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_nanguard.arbitration.call_catcher import CaughtCall
from megatron_nanguard.arbitration.suspects import caught_calls, function_catchers, gone_calls, suspect_events
from megatron_nanguard.records.suspect_call import SavedCall
from megatron_nanguard.records.trace import OriginKind, RankTrace, TracedOrigin, TracedPlace

PLACE = TracedPlace("backward", 2, 0, "decoder.layers.1.mlp")
IN_FUNCTION = replace(PLACE, node="FusedAttentionBackward")


def origin(event: int, kind: OriginKind, operator: str, place: TracedPlace = PLACE) -> TracedOrigin:
    return TracedOrigin(event, kind, operator, place, ())


def traced(*origins: TracedOrigin) -> RankTrace:
    return RankTrace(rank=5, coords="tp1pp1dp0", microbatch=2, origins=origins)


def caught(operator: str, kind: str = "operator") -> CaughtCall:
    return CaughtCall(SavedCall(rank=5, operator=operator, kind=kind))  # type: ignore[arg-type]


def test_operators_and_first_readers_of_external_tensors_are_suspect() -> None:
    trace = traced(
        origin(7, OriginKind.OPERATOR, "log"),
        origin(9, OriginKind.OUTSIDE, "parameter weight"),
        origin(11, OriginKind.UNSEEN, "FusedAttentionBackward", IN_FUNCTION),
        origin(12, OriginKind.NEVER_WRITTEN, "empty"),
        origin(13, OriginKind.COMMUNICATION, "recv_"),
        origin(14, OriginKind.SCALER, "_to_copy"),
    )

    assert suspect_events(trace) == {7, 9, 14}
    assert list(function_catchers(trace)) == [11]


def test_the_call_that_first_read_an_external_tensor_is_saved() -> None:
    trace = traced(replace(origin(9, OriginKind.OUTSIDE, "parameter weight"), reader=30))

    assert suspect_events(trace) == {30}
    (call,) = caught_calls(trace, 3, {9: caught("aten.embedding.default"), 30: caught("aten.mm.default")})
    assert (call.saved.operator, call.saved.event) == ("aten.mm.default", 9)


def test_a_trace_without_origins_has_no_suspects() -> None:
    assert suspect_events(traced()) == frozenset()
    assert function_catchers(traced()) == {}
    assert caught_calls(traced(), 3, {}) == ()


def test_a_call_gets_the_place_that_the_trace_knows() -> None:
    (call,) = caught_calls(traced(origin(7, OriginKind.OPERATOR, "add.Tensor")), 3, {7: caught("aten.add.Tensor")})

    assert call.saved == SavedCall(
        rank=5, step=3, event=7, operator="aten.add.Tensor", module="decoder.layers.1.mlp", phase="backward"
    )


def test_a_fault_that_was_gone_in_the_saving_pass_leaves_no_call() -> None:
    (call,) = gone_calls(traced(origin(7, OriginKind.OPERATOR, "log")), 3)

    assert (call.saved.event, call.saved.step, call.saved.operator) == (7, 3, "log")
    assert call.saved.why_not == "the fault was gone in the pass that was to save it"


def test_an_unseen_kernel_gets_the_call_of_the_function_catcher() -> None:
    trace = traced(origin(11, OriginKind.UNSEEN, "FusedAttentionBackward", IN_FUNCTION))

    (call,) = caught_calls(trace, 3, {}, {11: caught("FusedAttention", "backward")})

    assert (call.saved.operator, call.saved.event, call.saved.why_not) == ("FusedAttention", 11, "")


@pytest.mark.parametrize(
    ("accused", "why_not"),
    [
        (origin(7, OriginKind.OPERATOR, "exp"), "the pass that was to save it did not come so far"),
        (
            origin(8, OriginKind.OPERATOR, "exp"),
            "aten.log.default ran under its number in the pass that was to save it",
        ),
        (origin(8, OriginKind.COMMUNICATION, "recv_"), "a communication needs its group"),
        (
            origin(8, OriginKind.OUTSIDE, "gradient of w"),
            "it was in the gradient buffer before any operator added to it",
        ),
        (
            origin(8, OriginKind.NEVER_WRITTEN, "empty"),
            "memory that nobody wrote was read; there is no call to make again",
        ),
        (
            origin(8, OriginKind.UNSEEN, "unseen write"),
            "the kernel that wrote it is not seen, and belongs to no autograd Function",
        ),
    ],
)
def test_an_origin_without_a_call_has_a_reason(accused: TracedOrigin, why_not: str) -> None:
    (call,) = caught_calls(traced(accused), 3, {8: caught("aten.log.default")})

    assert (call.saved.operator, call.saved.event, call.saved.why_not) == (accused.operator, accused.event, why_not)
