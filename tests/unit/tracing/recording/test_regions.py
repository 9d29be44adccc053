"""A region reads what it was given: of a chain of unseen kernels only the one that made the NaN is the origin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

from megatron_nanguard.records.trace import OriginKind
from tests.unit.tracing.unseen_kernels import (
    WIDTH,
    Call,
    Layer,
    Linear,
    LinearSetUpApart,
    between,
    directly,
    kernel,
    layers,
    memory,
    nan_made_visibly,
    only_origin,
    places,
    trace,
)

kept_apply = Linear.apply
CALLS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "a kept apply": (kept_apply, "Linear"),
    "a context set up apart": (LinearSetUpApart.apply, "LinearSetUpApart"),
    "the forward itself": (directly, "Linear"),
}
FAULTS = {"forward": ".forward", "grad of x": "Backward", "grad of weight": "Backward"}


@pytest.fixture(params=["plain", "marker fill", "look when newly bad", "profile"])
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Options of the tracer for the ways in which a pass can be traced."""
    if request.param == "profile":
        monkeypatch.setattr("megatron_nanguard.tracing.calls.code_watch._take_tool", lambda: None)
    yield {"marker fill": {"marker_fill": True}, "look when newly bad": {"look_when_newly_bad": True}}.get(
        request.param, {}
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_only_the_kernel_that_made_the_nan_is_the_origin(fault: str, options: dict[str, Any]) -> None:
    origin = only_origin(layers("", "", fault, ""), **options)
    assert (origin.kind, origin.operator, origin.place.module, origin.times) == (
        OriginKind.UNSEEN,
        f"Linear{FAULTS[fault]}",
        "4",
        1,
    )
    assert origin.place.phase == ("forward" if fault == "forward" else "backward")
    assert [facts.name for facts in origin.outputs] == ["0" if fault == "forward" else fault]
    assert {facts.pattern for facts in origin.inputs} == {"finite"}
    went_in = {facts.name for facts in origin.inputs}
    assert {"x", "weight"} <= went_in
    assert ("grad" in went_in) is (fault != "forward")


def test_without_a_fault_a_chain_of_kernels_is_silent(options: dict[str, Any]) -> None:
    assert places(layers("", "", ""), **options) == []


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_however_a_function_is_called_it_is_a_region(call: str, fault: str) -> None:
    function, name = CALLS[call]
    found = places(layers("", fault, "", call=function))
    assert found == ([(f"{name}{FAULTS[fault]}", "2")] if fault else [])


def test_a_forward_called_itself_without_gradients_is_a_region() -> None:
    inner = layers("", "forward", "", call=directly)

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                frozen = self.inner(x)
            return x + frozen

    assert places(Frozen()) == [("Linear.forward", "inner.2")]


@dataclass
class Box:
    tensor: Tensor


class TakesContainer(Function):
    """Multiplies by a tensor that lies in an object in a list in a dictionary."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, nested: dict[str, list[Box]]) -> Tensor:
        return kernel(torch.empty_like(x), memory(x) * memory(nested["boxes"][0].tensor))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


@pytest.mark.parametrize("is_bad", [True, False])
def test_a_nan_inside_of_a_nested_argument_is_followed(is_bad: bool) -> None:
    def function(x: Tensor) -> Tensor:
        nested = nan_made_visibly(x) if is_bad else torch.sin(x.detach())
        return TakesContainer.apply(x, {"boxes": [Box(nested)]})

    assert places(between(Call(function))) == ([("log", "1")] if is_bad else [])


class KeepsAttribute(Function):
    """Leaves a tensor on its context, which the kernel of the backward reads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, is_bad: bool) -> Tensor:
        ctx.statistics = nan_made_visibly(x) if is_bad else torch.sin(x)
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return kernel(torch.empty_like(grad), memory(grad) * memory(ctx.statistics)), None


@pytest.mark.parametrize("is_bad", [True, False])
def test_a_nan_on_the_context_is_followed_from_the_backward(is_bad: bool) -> None:
    assert places(between(Call(KeepsAttribute.apply, is_bad))) == ([("log", "1")] if is_bad else [])


class DividesInBackward(Function):
    """A visible operator makes the NaN in the backward, and a kernel hands it on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, is_bad: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.is_bad = is_bad
        return kernel(torch.empty_like(x), memory(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        divided = (x - x) / (x - x) if ctx.is_bad else grad / 2
        return kernel(torch.empty_like(grad), memory(divided)), None


@pytest.mark.parametrize("is_bad", [True, False])
def test_a_visible_operator_inside_of_a_backward_is_the_finer_place(is_bad: bool) -> None:
    assert places(between(Call(DividesInBackward.apply, is_bad))) == ([("div.Tensor", "1")] if is_bad else [])


def test_a_nan_that_goes_around_a_region_is_not_its_own() -> None:
    inner = layers("", "")

    def function(x: Tensor) -> Tensor:
        return inner(x) + nan_made_visibly(x)

    assert places(between(Call(function))) == [("log", "1")]


class Softmax(Function):
    """Softmax of scores with a mask. It returns the log of the sum too, which is -inf in a row that is masked."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor) -> Any:
        masked = memory(scores) + memory(mask)
        largest = masked.max(-1, keepdims=True)
        largest[largest == -math.inf] = 0
        terms = numpy.exp(masked - largest)
        total = terms.sum(-1, keepdims=True)
        out = kernel(torch.empty_like(scores), terms / total.clip(1e-9))
        with numpy.errstate(divide="ignore"):
            log_sum = kernel(torch.empty(scores.shape[0], 1), numpy.log(total) + largest)
        ctx.save_for_backward(out, log_sum)
        return out, log_sum

    @staticmethod
    def backward(ctx: Any, grad: Tensor, unused: Tensor) -> Any:
        out, _ = map(memory, ctx.saved_tensors)
        inner = memory(grad) - (memory(grad) * out).sum(-1, keepdims=True)
        return kernel(torch.empty_like(grad), out * inner), None


class Attention(nn.Module):
    """Attends with a mask whose first row is masked as a whole, then runs a layer."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.scores, self.projection = Layer(), Layer(fault)
        mask = torch.full((WIDTH, WIDTH), -math.inf).triu(1)
        mask[0] = -math.inf
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(x[:1].expand(WIDTH, WIDTH).contiguous())
        probabilities, _ = Softmax.apply(scores, self.mask)
        return self.projection(probabilities)


@pytest.mark.parametrize("fault", ["", "forward", "grad of x"])
def test_an_inf_of_a_mask_that_goes_through_a_kernel_is_meant(fault: str) -> None:
    found = places(between(Attention(fault)))
    assert found == ([(f"Linear{FAULTS[fault]}", "1.projection")] if fault else [])


class TwoKernels(Function):
    """Its first kernel writes what is saved, its second kernel the output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spoils: bool) -> Tensor:
        hidden, out = torch.empty_like(x), torch.empty_like(x)
        kernel(hidden, memory(x), spoils=spoils)
        ctx.save_for_backward(hidden)
        return kernel(out, memory(hidden))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (hidden,) = ctx.saved_tensors
        return kernel(torch.empty_like(grad), memory(grad) * memory(hidden)), None


@pytest.mark.parametrize("spoils", [True, False])
def test_two_kernels_of_one_call_are_one_origin(spoils: bool) -> None:
    calls = [Call(TwoKernels.apply, is_faulty) for is_faulty in (False, spoils, False)]
    found = trace(between(*calls)).origins
    assert [(origin.operator, origin.place.module, origin.times) for origin in found] == (
        [("TwoKernels.forward", "2", 1)] if spoils else []
    )


class Raising(Function):
    """Raises after a kernel has written."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        kernel(torch.empty_like(x), memory(x), spoils=True)
        raise ValueError("planted")


def test_a_region_that_raises_does_not_disturb_those_after_it(options: dict[str, Any]) -> None:
    def function(x: Tensor) -> Tensor:
        with pytest.raises(ValueError, match="planted"):
            Raising.apply(x)
        return x * 1

    assert places(between(Call(function), *layers("", "forward", "")), **options) == [("Linear.forward", "4")]
    assert places(between(Call(function), *layers("", "", "")), **options) == []
