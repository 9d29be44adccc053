"""In a second traced pass the call is saved in which the first one found the origin."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from megatron_nanguard.arbitration.function_catcher import FunctionCatcher, Moment
from megatron_nanguard.arbitration.repetition import arbitrate
from megatron_nanguard.arbitration.suspects import caught_calls, function_catchers
from megatron_nanguard.records.suspect_call import Arbitration
from megatron_nanguard.records.trace import RankTrace
from megatron_nanguard.tracing.marker_fill import holds_only_markers
from megatron_nanguard.tracing.tracer import Tracer


def memory(tensor: Tensor) -> Any:
    """The elements of a tensor, behind the back of the dispatcher."""
    pointer = (ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr())
    return np.frombuffer(pointer, np.float32).reshape(tuple(tensor.shape))


class Opaque(torch.autograd.Function):
    """A linear layer whose kernels write through pointers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, fault: str) -> Tensor:
        out = torch.empty(x.shape[0], w.shape[0])
        memory(out)[...] = memory(x) @ memory(w).T
        if fault == "forward":
            memory(out)[0, 1] = math.nan
        ctx.save_for_backward(x, w)
        ctx.fault = fault
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        dx = torch.empty_like(x)
        memory(dx)[...] = memory(grad.contiguous()) @ memory(w)
        memory(w.main_grad)[...] += memory(grad.contiguous()).T @ memory(x)
        if ctx.fault == "backward":
            memory(dx)[0, 1] = math.nan
        if ctx.fault == "wgrad":
            memory(w.main_grad)[0, 1] = math.nan
        w.grad_added_to_main_grad = True
        return dx, torch.empty_like(w), None


class Layer(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) / 2)
        self.weight.main_grad = torch.zeros(4, 4)  # type: ignore[attr-defined]
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        return Opaque.apply(x, self.weight, self.fault)  # type: ignore[no-any-return]


def traced(
    model: nn.Module, x: Tensor, catchers: Collection[FunctionCatcher], *, marker_fill: bool = False
) -> RankTrace:
    """Trace one step; the gradients are what they were before."""
    names = {module: name for name, module in model.named_modules()}
    params = {param: name for name, param in model.named_parameters()}
    tracer = Tracer([model], names, params, 0, 0, marker_fill=marker_fill, call_listeners=catchers)

    def now() -> Moment:
        place = tracer.place()
        return Moment(tracer.next_event, place.module, place.phase)

    for catcher in catchers:
        catcher.now = now
        if marker_fill:
            catcher.is_unwritten = holds_only_markers
    with tracer, tracer.at(0, 0, False):
        loss = model(x).square().mean()
        tracer.add_loss(0, loss)
        loss.backward()
        tracer.after_backward(0, 0)
    tracer.finish()
    for param in params:
        param.grad = None
        param.main_grad.zero_()  # type: ignore[attr-defined]
    return tracer.summarize("")


@pytest.mark.parametrize(
    ("fault", "region", "output"),
    [("forward", "Opaque.forward", "0"), ("backward", "OpaqueBackward", "grad of x")],
)
def test_the_call_of_the_origin_is_saved_and_bad_again(fault: str, region: str, output: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Layer(""), nn.GELU(), Layer(fault), nn.GELU(), Layer(""))
    step = partial(traced, model, torch.randn(2, 4))
    first = step([])
    catchers = function_catchers(first)

    second = step(catchers.values())
    calls = caught_calls(second, 3, {}, {event: catcher.call for event, catcher in catchers.items()})

    # Fresh memory that nothing reads may hold a NaN in one pass and none in the next.
    second, first = replace(second, num_contained=0), replace(first, num_contained=0)
    assert second == first, "a catcher leaves the numbers of events as they are"
    (call,) = calls
    assert (call.saved.module, call.saved.why_not) == ("2", "")
    assert torch.equal(call.tensors["w"], model[2].weight)  # type: ignore[arg-type]
    assert [one.name for one in call.saved.outputs if not one.is_finite] == [output]
    found = arbitrate(call, 4)
    assert (found.operator, found.repeats, found.repeats_bad) == (region, 4, 4)


class InWorkspace(torch.autograd.Function):
    """Works in memory that it is handed; the kernel may read it before it writes it, or be wrong beside it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, workspace: Tensor, fault: str) -> Tensor:
        out = torch.empty(x.shape)
        with np.errstate(invalid="ignore"):
            memory(out)[...] = memory(x) + (memory(workspace) if fault == "reads" else 1)
        if fault == "wrong":
            memory(out)[0, 1] = math.nan
        rows = slice(0, -1) if fault == "rows" else slice(None)
        result = torch.empty(x.shape)
        memory(result)[rows] = memory(out)[rows]
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None, None


class Worker(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.weight.main_grad = torch.zeros(4, 4)  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        return InWorkspace.apply(x @ self.weight, torch.empty(x.shape), self.fault)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("fault", "bad", "bad_in_zeros"), [("reads", 2, 0), ("rows", 2, 0), ("wrong", 4, 2)])
def test_under_marker_fill_the_call_tells_a_read_of_fresh_memory_from_a_wrong_kernel(
    fault: str, bad: int, bad_in_zeros: int
) -> None:
    step = partial(traced, nn.Sequential(Worker(fault)), torch.ones(2, 4), marker_fill=True)
    catchers = function_catchers(step([]))

    second = step(catchers.values())
    (call,) = caught_calls(second, 3, {}, {event: catcher.call for event, catcher in catchers.items()})

    found: Arbitration = arbitrate(call, 4)
    assert call.saved.tensors["workspace"].is_unwritten
    assert (found.inputs_bad, found.repeats) == (False, 4)
    assert (found.repeats_bad, found.zero_filled, found.zero_filled_bad) == (bad, 2, bad_in_zeros)


def test_under_marker_fill_a_kernel_that_fills_its_workspace_first_is_no_origin() -> None:
    found = traced(nn.Sequential(Worker("")), torch.ones(2, 4), [], marker_fill=True)

    assert (found.broken, found.origins) == ("", ())
