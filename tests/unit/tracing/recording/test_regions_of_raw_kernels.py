"""Kernels outside of any Function: the innermost module call is the region, then the step; and custom operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megatron_nanguard.records.trace import OriginKind
from megatron_nanguard.tracing.callable import trace_nan
from tests.unit.tracing.unseen_kernels import (
    WIDTH,
    AddsRawKernel,
    Call,
    Layer,
    RawKernel,
    between,
    kernel,
    layers,
    memory,
    nan_made_visibly,
    only_origin,
    places,
)


def test_a_kernel_in_a_module_is_named_with_the_function_that_calls_it() -> None:
    origin = only_origin(between(AddsRawKernel(), AddsRawKernel(spoils=True), Layer(), AddsRawKernel()))
    assert (origin.kind, origin.operator, origin.place.module) == (OriginKind.UNSEEN, "RawKernel.forward", "2.raw")
    assert [(facts.name, facts.pattern) for facts in origin.inputs] == [("x", "finite"), ("weight", "finite")]


def test_without_a_fault_nothing_is_found() -> None:
    assert places(between(AddsRawKernel(), Layer(), AddsRawKernel())) == []


def test_a_nan_that_goes_through_raw_kernels_is_not_theirs() -> None:
    model = between(Layer("forward"), AddsRawKernel(), Layer(), AddsRawKernel())
    assert places(model) == [("Linear.forward", "1")]


def test_a_nan_in_a_weight_of_the_module_is_followed() -> None:
    model = between(AddsRawKernel())
    with torch.no_grad():
        model[1].raw.weight[0] = torch.nan
    assert [operator for operator, _ in places(model)] == ["parameter 1.raw.weight"]


@pytest.mark.parametrize("is_bad", [True, False])
def test_a_nan_in_a_keyword_argument_is_followed(is_bad: bool) -> None:
    scale = torch.ones(WIDTH)
    model = between(AddsRawKernel(scale=lambda: nan_made_visibly(scale) if is_bad else scale * 1))
    assert places(model) == ([("log", "1")] if is_bad else [])


class RawThenFunction(nn.Module):
    """What a raw kernel wrote goes straight into a Function."""

    def __init__(self, *, spoils: bool) -> None:
        super().__init__()
        self.raw, self.layer = RawKernel(spoils=spoils), Layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.raw(x)) + x


@pytest.mark.parametrize("spoils", [True, False])
def test_a_function_after_a_raw_kernel_is_not_the_origin(spoils: bool) -> None:
    found = places(between(RawThenFunction(spoils=spoils)))
    assert found == ([("RawKernel.forward", "1.raw")] if spoils else [])


def test_outside_of_modules_the_step_is_the_region() -> None:
    model = layers("", "forward", "")

    def function() -> Tensor:
        with torch.no_grad():
            out = model(torch.ones(1, WIDTH))
            return kernel(torch.empty_like(out), memory(out)).sum()

    assert [origin.operator for origin in trace_nan(function).origins] == ["Linear.forward"]


@torch.library.custom_op("nanguard_tests::doubled", mutates_args=())
def doubled(x: Tensor, spoils: bool) -> Tensor:
    return kernel(torch.empty_like(x), memory(x) * 2, spoils=spoils)


def gradient_of_doubled(ctx: Any, grad: Tensor) -> Any:
    return grad * 2, None


doubled.register_autograd(gradient_of_doubled)


@pytest.mark.parametrize("spoils", [True, False])
def test_a_custom_operator_is_one_event(spoils: bool) -> None:
    found = places(between(Call(doubled, False), Call(doubled, spoils), Call(doubled, False)))
    assert found == ([("doubled", "2")] if spoils else [])
