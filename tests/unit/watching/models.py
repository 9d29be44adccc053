"""Modules with faults that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.utils.checkpoint import checkpoint


class SteepGelu(torch.autograd.Function):
    """The forward is right everywhere; the backward divides zero by zero beyond 10."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.nn.functional.gelu(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (x,) = ctx.saved_tensors
        tail = torch.exp(-x * x)
        slope = torch.where(x > 10, (tail * 0) / (tail * 0), torch.ones_like(x))
        return grad_outputs[0] * slope


class Gelu(Module):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = SteepGelu.apply(x)
        return out


class Scale(Module):
    """x * weight."""

    def __init__(self, *weight: float) -> None:
        super().__init__()
        self.weight = Parameter(torch.tensor(weight))
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Mlp(Module):
    """h = x * up, y = down * gelu(h); up = [2, 3], down = [5, 7]."""

    def __init__(self) -> None:
        super().__init__()
        self.up = Scale(2.0, 3.0)
        self.activation = Gelu()
        self.down = Scale(5.0, 7.0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.activation(self.up(x)))
        return y


class Block(Module):
    """x + mlp(x), as a transformer has it: x is read twice."""

    def __init__(self, recompute: str | None = None) -> None:
        super().__init__()
        self.mlp = Mlp()
        self._recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        if self._recompute is None:
            y = self.mlp(x)
        else:
            y = checkpoint(self.mlp, x, use_reentrant=self._recompute == "reentrant")
        return x + y


GOOD = (1.0, 2.0)
STEEP = (1.0, 4.0)
"""h = [2, 12]: finite forward, and a gradient that is NaN at 1."""


def leaf(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, requires_grad=True)
