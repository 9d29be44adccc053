"""Kernels that no dispatcher sees: autograd.Functions and modules that write through pointers, with planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from megatron_nanguard.records.trace import RankTrace, TracedOrigin
from tests.unit.tracing.steps import Schedule

WIDTH = 4


def kernel(out: Tensor, value: Any, *, spoils: bool = False) -> Tensor:
    """Write a value into a tensor past the dispatcher, with a NaN in its first element if the kernel is faulty."""
    memory(out)[...] = value
    if spoils:
        memory(out).flat[0] = math.nan
    return out


def memory(tensor: Tensor) -> Any:
    """The elements of a tensor, as no dispatcher sees them."""
    return tensor.detach().numpy()


class Linear(Function):
    """x @ weight.t(). The fault says what it writes a NaN into: "forward", "grad of x" or "grad of weight"."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, fault: str = "") -> Tensor:
        if ctx is not None:
            ctx.save_for_backward(x, weight)
            ctx.fault = fault
        out = torch.empty(x.shape[0], weight.shape[0])
        return kernel(out, memory(x) @ memory(weight).T, spoils=fault == "forward")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        into_x, into_weight = torch.empty_like(x), torch.empty_like(weight)
        kernel(into_x, memory(grad) @ memory(weight), spoils=ctx.fault == "grad of x")
        kernel(into_weight, memory(grad).T @ memory(x), spoils=ctx.fault == "grad of weight")
        return into_x, into_weight, None


class LinearSetUpApart(Function):
    """The same with a forward that has no context."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, fault: str) -> Tensor:
        out = torch.empty(x.shape[0], weight.shape[0])
        return kernel(out, memory(x) @ memory(weight).T, spoils=fault == "forward")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.fault = inputs[2]

    backward = Linear.backward


def directly(x: Tensor, weight: Tensor, fault: str) -> Tensor:
    """As Transformer Engine does it: without gradients it calls the forward itself, with no context."""
    if torch.is_grad_enabled():
        return Linear.apply(x, weight, fault)
    return Linear.forward(None, x, weight, fault)


class Layer(nn.Module):
    """A linear layer that calls a Function around a kernel."""

    def __init__(self, fault: str = "", call: Callable[..., Tensor] = Linear.apply) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2)
        self.fault, self.call = fault, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x, self.weight, self.fault)


class Call(nn.Module):
    """Calls a function on what comes in."""

    def __init__(self, function: Callable[..., Tensor], *more: Any) -> None:
        super().__init__()
        self.function, self.more = function, more

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.more)


class RawKernel(nn.Module):
    """Calls a kernel without any Function around it."""

    def __init__(self, *, spoils: bool = False) -> None:
        super().__init__()
        self.weight, self.spoils = nn.Parameter(torch.ones(WIDTH)), spoils

    def forward(self, x: Tensor, *, scale: Tensor | None = None) -> Tensor:
        scaled = memory(x) * memory(self.weight) * (1.0 if scale is None else memory(scale))
        return kernel(torch.empty_like(x), scaled, spoils=self.spoils)


class AddsRawKernel(nn.Module):
    """Adds what a raw kernel makes to what comes in."""

    def __init__(self, *, spoils: bool = False, scale: Callable[[], Tensor] | None = None) -> None:
        super().__init__()
        self.raw, self.scale = RawKernel(spoils=spoils), scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.raw(x, scale=None if self.scale is None else self.scale())


def nan_made_visibly(x: Tensor) -> Tensor:
    """A NaN of the operator log."""
    return torch.log(-x.detach().abs() - 1)


def layers(*faults: str, call: Callable[..., Tensor] = Linear.apply) -> nn.Sequential:
    """A layer for each fault; "" is a healthy one."""
    torch.manual_seed(0)
    return nn.Sequential(*(part for fault in faults for part in (Layer(fault, call), nn.Tanh())))


def between(*modules: nn.Module) -> nn.Sequential:
    """Put visible linear layers around modules, so that gradients reach all of these."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *modules, nn.Linear(WIDTH, WIDTH))


def trace(model: nn.Module, **options: Any) -> RankTrace:
    """Trace one micro-batch, with a leaf as its input."""
    x = torch.linspace(-1.0, 1.0, 3 * WIDTH).reshape(3, WIDTH).requires_grad_()
    traced = Schedule(model, microbatch=0, **options).run([x], lambda out: out.square().mean())
    assert traced.broken == ""
    return traced


def only_origin(model: nn.Module, **options: Any) -> TracedOrigin:
    """The one origin of a traced micro-batch."""
    (origin,) = trace(model, **options).origins
    return origin


def places(model: nn.Module, **options: Any) -> list[tuple[str, str]]:
    """Operator and module of each origin."""
    return [(origin.operator, origin.place.module) for origin in trace(model, **options).origins]
