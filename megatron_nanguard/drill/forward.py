"""Phase forward: the output of a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from megatron_nanguard.drill.module_drill import Execution, ModuleDrill, replace_first
from megatron_nanguard.drill.poison import ElementRange
from megatron_nanguard.drill.targets import DrilledModel
from megatron_nanguard.drill.trigger import Trigger


class PoisonedOutput(torch.autograd.Function):
    """Returns poisoned values and passes the gradient through unchanged, like a kernel that wrote wrong values."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, trigger: Trigger, source: str) -> Tensor:
        """Poison a copy."""
        poisoned = output.clone()
        trigger.fire(poisoned, ElementRange.whole(poisoned), source)
        return poisoned

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        """Pass the gradient through unchanged."""
        return grad_outputs[0], None, None


class ForwardDrill(ModuleDrill):
    """Replaces the first floating-point tensor that the module returns."""

    def __init__(self, trigger: Trigger, model: DrilledModel) -> None:
        super().__init__(trigger, model)
        self._current: Execution | None = None
        self.handles += [
            self.module.register_forward_pre_hook(self._before),
            self.module.register_forward_hook(self._after),
        ]

    def _before(self, module: Module, args: object) -> None:
        self._current = self.executions.begin()

    def _after(self, module: Module, args: object, output: object) -> object:
        execution, trigger = self._current, self.trigger
        if execution is None:
            return None
        if trigger.fires_now(execution.microbatch):
            replaced, found = replace_first(
                output, torch.is_floating_point, lambda tensor: PoisonedOutput.apply(tensor, trigger, execution.kind)
            )
            if not found:
                trigger.why_not = "the module returns no floating-point tensor"
            return replaced
        if trigger.remembers():
            replace_first(output, torch.is_floating_point, lambda tensor: self._remember(tensor, execution.kind))
        return None

    def _remember(self, output: Tensor, source: str) -> Tensor:
        self.trigger.remember(output, source)
        return output
