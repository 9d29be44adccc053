"""Kernels that write past what a Function returns: into arguments, into buffers handed in, and into `main_grad`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

from tests.unit.tracing.unseen_kernels import (
    WIDTH,
    Call,
    Layer,
    between,
    kernel,
    memory,
    nan_made_visibly,
    only_origin,
    places,
)


class InPlace(Function):
    """Doubles its argument in place, and hands it on: marked as dirty, or as a view that no one has marked."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spoils: bool, is_marked: bool) -> Tensor:
        kernel(x, memory(x) * 2, spoils=spoils)
        if is_marked:
            ctx.mark_dirty(x)
            return x
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * 2, None, None


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("spoils", [True, False])
def test_what_a_kernel_writes_into_its_argument_is_its_own(spoils: bool, is_marked: bool) -> None:
    healthy, faulty = (Call(InPlace.apply, is_faulty, is_marked) for is_faulty in (False, spoils))
    found = places(between(healthy, nn.Linear(WIDTH, WIDTH), faulty))
    assert found == ([("InPlace.forward", "3")] if spoils else [])


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_nan_that_a_kernel_in_place_got_is_not_its_own(is_marked: bool) -> None:
    assert places(between(Layer("forward"), Call(InPlace.apply, False, is_marked))) == [("Linear.forward", "1")]


class WritesResidual(Function):
    """Writes into a second argument, which it does not return."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, spoils: bool) -> Tensor:
        kernel(residual, memory(residual) + 1, spoils=spoils)
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None, None


@pytest.mark.parametrize("spoils", [True, False])
def test_what_a_kernel_writes_into_a_residual_is_its_own(spoils: bool) -> None:
    def function(x: Tensor) -> Tensor:
        residual = x.detach() * 2
        return WritesResidual.apply(x, residual, spoils) + residual

    origins = places(between(Call(function)))
    assert origins == ([("WritesResidual.forward", "1")] if spoils else [])


class SpoilsBeforeReading(Function):
    """A kernel writes into the argument, and a visible operator reads that afterwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spoils: bool) -> Tensor:
        kernel(x, memory(x), spoils=spoils)
        return x + 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


@pytest.mark.parametrize("spoils", [True, False])
def test_a_visible_operator_that_reads_what_a_kernel_has_spoilt_is_not_the_origin(spoils: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return SpoilsBeforeReading.apply(x * 1, spoils) * 1

    assert places(between(Call(function))) == ([("SpoilsBeforeReading.forward", "1")] if spoils else [])


class FillsBuffer(Function):
    """Writes its result into a buffer that the caller hands in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, out: Tensor, spoils: bool) -> Tensor:
        return kernel(out, memory(x) * 2, spoils=spoils).view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * 2, None, None


def buffer_with_junk(x: Tensor) -> Tensor:
    return kernel(torch.empty_like(x), math.nan)


@pytest.mark.parametrize("new_buffer", [buffer_with_junk, torch.empty_like, torch.zeros_like])
@pytest.mark.parametrize("spoils", [True, False])
def test_junk_in_a_buffer_that_is_handed_in_is_not_read(new_buffer: Callable[[Tensor], Tensor], spoils: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return FillsBuffer.apply(x, new_buffer(x.detach()), spoils)

    assert places(between(Call(function))) == ([("FillsBuffer.forward", "1")] if spoils else [])


def test_a_nan_that_comes_in_beside_a_buffer_is_followed() -> None:
    def function(x: Tensor) -> Tensor:
        return FillsBuffer.apply(nan_made_visibly(x), buffer_with_junk(x.detach()), False)

    assert places(between(Call(function))) == [("log", "1")]


class AddsIntoMainGrad(Function):
    """Adds the gradient of the weight into `main_grad`, and returns memory without values in its place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, spoils: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.spoils = weight, spoils
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        kernel(ctx.weight.main_grad, memory(ctx.weight.main_grad) + memory(grad).T @ memory(x), spoils=ctx.spoils)
        dummy = kernel(torch.empty_like(ctx.weight), math.nan)
        return grad @ ctx.weight, dummy, None


class Fused(nn.Module):
    """A layer whose gradient is accumulated by the kernel; a hook throws the dummy away, as Megatron does."""

    def __init__(self, spoils: bool) -> None:
        super().__init__()
        self.weight, self.spoils = nn.Parameter(torch.ones(WIDTH, WIDTH) / WIDTH), spoils
        self.weight.register_hook(torch.zeros_like)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(AddsIntoMainGrad.apply(x, self.weight, self.spoils))


def test_what_is_added_into_main_grad_is_named_after_the_weight() -> None:
    origin = only_origin(between(Fused(False), Fused(True), Fused(False)))
    assert (origin.operator, origin.place.module) == ("AddsIntoMainGradBackward", "2")
    assert [facts.name for facts in origin.outputs] == ["wgrad of 2.weight"]


def test_dummy_gradients_without_values_are_no_origin() -> None:
    assert places(between(Fused(False), Fused(False))) == []


class SharesItsDummy(AddsIntoMainGrad):
    """Returns the same memory without values for every weight, as Transformer Engine does for weights of one shape."""

    dummy = torch.full((WIDTH, WIDTH), math.nan)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        kernel(ctx.weight.main_grad, memory(ctx.weight.main_grad) + memory(grad).T @ memory(x))
        dummy = SharesItsDummy.dummy.detach()
        return grad @ ctx.weight, dummy, None


class FusedSharing(Fused):
    """A layer whose dummy gradient is shared."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(SharesItsDummy.apply(x, self.weight, self.spoils))


def test_a_dummy_that_another_region_has_returned_did_not_go_in() -> None:
    assert places(between(FusedSharing(False), FusedSharing(False))) == []
    faulty = between(FusedSharing(False), Layer("grad of x"), FusedSharing(False))
    assert places(faulty) == [("LinearBackward", "2")]


def test_what_another_region_adds_into_main_grad_does_not_name_the_output_that_it_is_made_of() -> None:
    origin = only_origin(between(Layer("forward"), Fused(False)))
    assert (origin.operator, origin.place.module) == ("Linear.forward", "1")
    assert [facts.name for facts in origin.outputs] == ["0"]
