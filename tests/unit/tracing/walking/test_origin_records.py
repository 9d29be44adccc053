"""Which ends of the walk count as one origin, its kind, and the limits of a record."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from megatron_nanguard.records.trace import OriginKind, RankTrace
from megatron_nanguard.tracing.tracer import Tracer
from tests.unit.tracing.faults import log_of_negative
from tests.unit.tracing.steps import trace

ONES = torch.ones(4)


def trace_loss(run: Callable[[], Tensor]) -> RankTrace:
    """Trace a computation that ends in a loss."""
    tracer = Tracer([], {}, {}, 0, 0)
    with tracer:
        with tracer.at(0, 0, False):
            loss = run()
        tracer.add_loss(0, loss)
    tracer.finish()
    traced = tracer.summarize("")
    assert traced.broken == ""
    return traced


class HalfPrecisionAbove(torch.autograd.Function):
    """Computes its gradient in fp32 and returns it in fp16, as a cross-entropy does."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.float()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return (grad * 65536.0).to(torch.float16)


def test_overflow_of_a_scaled_gradient_on_its_way_to_fp16_is_the_scaler_at_work() -> None:
    traced = trace(lambda x: HalfPrecisionAbove.apply(x.half()))
    (origin,) = traced.origins
    assert (origin.kind, origin.operator, origin.outputs[0].pattern) == (OriginKind.SCALER, "_to_copy", "inf")


def test_overflow_to_fp16_in_the_forward_is_not() -> None:
    (origin,) = trace_loss(lambda: (ONES * 70000.0).to(torch.float16).sum()).origins
    assert (origin.kind, origin.operator) == (OriginKind.OPERATOR, "_to_copy")


def test_gradient_that_fits_into_fp16_yields_nothing() -> None:
    class Fits(HalfPrecisionAbove):
        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            return (grad * 1024.0).to(torch.float16)

    assert trace(lambda x: Fits.apply(x.half())).origins == ()


def test_repeated_calls_of_one_line_are_one_origin() -> None:
    def run() -> Tensor:
        return torch.stack([log_of_negative(ONES + number) for number in range(3)]).sum()

    (origin,) = trace_loss(run).origins
    assert (origin.operator, origin.times) == ("log", 3)


def test_independent_origins_are_listed_in_the_order_of_execution() -> None:
    def run() -> Tensor:
        first = log_of_negative(ONES)
        second = torch.sqrt(-ONES)
        return (second + first).sum()

    traced = trace_loss(run)
    assert [origin.operator for origin in traced.origins] == ["log", "sqrt"]
    assert [cause.index for cause in traced.sinks[0].causes] == [0, 1]


def test_eight_origins_are_kept_and_the_rest_is_counted() -> None:
    makers = [getattr(torch, name) for name in ("log", "sqrt", "log2", "log10", "asin", "acos", "acosh", "atanh")]
    makers += [lambda x: torch.log1p(x - 5), lambda x: torch.rsqrt(x), lambda x: torch.pow(x, 0.5)]
    traced = trace_loss(lambda: torch.stack([maker(-ONES * 3) for maker in makers]).sum())
    assert [origin.operator for origin in traced.origins] == [
        "log",
        "sqrt",
        "log2",
        "log10",
        "asin",
        "acos",
        "acosh",
        "atanh",
    ]
    assert traced.truncated == 3
    assert [cause.index for cause in traced.sinks[0].causes] == list(range(8))


def test_members_of_a_foreach_are_followed_separately() -> None:
    def run() -> Tensor:
        bad, good = log_of_negative(ONES), torch.sqrt(-ONES)
        outs = torch._foreach_mul([bad, good], 2.0)
        return outs[0].sum()

    assert [origin.operator for origin in trace_loss(run).origins] == ["log"]


def test_members_of_a_foreach_in_place_are_followed_separately() -> None:
    def run() -> Tensor:
        tensors = [ONES * 1.0, ONES * 1.0]
        torch._foreach_add_(tensors, [torch.sqrt(-ONES), log_of_negative(ONES)])
        return tensors[1].sum()

    assert [origin.operator for origin in trace_loss(run).origins] == ["log"]


def test_healthy_part_of_a_bad_tensor_leads_nowhere() -> None:
    def run() -> Tensor:
        packed = torch.cat([log_of_negative(ONES), -ONES])
        return torch.sqrt(packed[4:]).sum()

    traced = trace_loss(run)
    assert [origin.operator for origin in traced.origins] == ["sqrt"]


def test_bad_part_of_a_tensor_written_in_parts_leads_to_its_writer() -> None:
    def run() -> Tensor:
        packed = torch.empty(2, 8)
        packed[:, ::2] = torch.sqrt(-torch.ones(2, 4))
        packed[:, 1::2] = 1.0
        return packed.sum()

    traced = trace_loss(run)
    assert [(origin.kind, origin.operator) for origin in traced.origins] == [(OriginKind.OPERATOR, "sqrt")]


def test_garbage_that_is_overwritten_before_it_is_read_is_no_origin() -> None:
    def run() -> Tensor:
        buffer = torch.full((4,), math.nan)
        buffer.copy_(ONES)
        return buffer.sum() + torch.add(ONES, ONES, out=torch.full((4,), math.nan)).sum()

    traced = trace_loss(run)
    assert traced.origins == traced.sinks == ()


def test_infinity_with_a_new_sign_was_not_meant() -> None:
    def run() -> Tensor:
        masked = torch.full((4,), -math.inf)
        return torch.exp(-masked).sum()

    traced = trace_loss(run)
    assert [origin.operator for origin in traced.origins] == ["neg"]


def test_path_keeps_two_hundred_steps() -> None:
    def run() -> Tensor:
        x = log_of_negative(ONES)
        for number in range(300):
            x = (torch.sin if number % 2 else torch.cos)(x)
        return x.sum()

    (origin,) = trace_loss(run).origins
    assert len(origin.path) == 200
    assert origin.path[:3] == ("log", "cos", "sin")


@pytest.mark.parametrize("operator", ["sqrt", "log"])
def test_source_line_is_that_of_the_call(operator: str) -> None:
    call = getattr(torch, operator)
    line = (lambda: None).__code__.co_firstlineno + 1
    (origin,) = trace_loss(lambda: call(-ONES).sum()).origins
    assert origin.place.source_line is not None
    assert f"test_origin_records.py:{line} in " in origin.place.source_line
