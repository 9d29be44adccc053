"""A model small enough to differentiate by hand, and drills on it.

h = x * first.weight, y = h * second.weight, loss = factor * sum(y)
first.weight = [2, 3], second.weight = [5, 7], so for x = [1, 2] and factor 1
d loss / d h = [5, 7], d loss / d first.weight = [5, 14], d loss / d second.weight = h = [2, 6]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from megatron_nanguard.drill.grammar import parse
from megatron_nanguard.drill.planted_drills import PlantedDrills
from megatron_nanguard.parameters.global_names import name_modules
from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.records.coordinates import ParallelSizes

ONE_RANK = ParallelSizes(world=1, tp=1, cp=1, ep=1, dp=1, pp=1, expert_tp=1, expert_dp=1)
X0 = (1.0, 2.0)
X1 = (3.0, 4.0)


class Scale(Module):
    """x * weight."""

    def __init__(self, *weight: float) -> None:
        super().__init__()
        self.weight = Parameter(torch.tensor(weight))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Chain(Module):
    """Two scales, called by way of `call`: directly, or by a checkpoint function."""

    def __init__(self, call: Callable[..., Any] = lambda run, x: run(x)) -> None:
        super().__init__()
        self.first = Scale(2.0, 3.0)
        self.second = Scale(5.0, 7.0)
        self._call = call

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self._call(lambda h: self.second(self.first(h)), x)
        return output


def plant(spec: str, *chunks: Module, rank: int = 0) -> PlantedDrills:
    """Drills planted in these chunks."""
    drills = PlantedDrills(parse(spec), rank)
    drills.attach(chunks, name_modules(chunks), ParameterMap(chunks, ONE_RANK))
    return drills


def train(drills: PlantedDrills | None, model: Module, step: int, inputs: Sequence[Iterable[float]] = (X0,)) -> None:
    """One step on fresh gradients, 1F1B with all forwards first; micro-batch n has the loss factor 10 ** n."""
    model.zero_grad()
    if drills is not None:
        drills.step_begins(step)
    outputs = [model(torch.tensor(list(x), requires_grad=True)) for x in inputs]
    for number, output in enumerate(outputs):
        (output.sum() * 10**number).backward()
    if drills is not None:
        drills.before_reduction(list(model.parameters()))
        drills.after_reduction()
        drills.step_ends()


def grads(model: Module) -> dict[str, list[float]]:
    """Every gradient as numbers."""
    return {name: param.grad.tolist() for name, param in model.named_parameters() if param.grad is not None}


def fired(drills: PlantedDrills) -> dict[str, int]:
    """How often each planted drill went off, by its text."""
    return {drill.text: drill.fired for drill in drills.record().drills if drill.is_planted}
