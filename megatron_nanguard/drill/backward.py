"""Phase backward: the gradient of a module's input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from megatron_nanguard.drill.module_drill import ModuleDrill, replace_first
from megatron_nanguard.drill.poison import ElementRange
from megatron_nanguard.drill.targets import DrilledModel
from megatron_nanguard.drill.trigger import Trigger


class PoisonedInputGradient(torch.autograd.Function):
    """The identity; the drill fires in its backward.

    A backward does not know its micro-batch, so the node keeps the number that was current when a forward or a
    recompute built it.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, trigger: Trigger, microbatch: int) -> Tensor:
        """Return the input as another object: autograd would treat the same one as a view that must not be written."""
        ctx.trigger = trigger
        ctx.microbatch = microbatch
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        """Poison a copy of the gradient, or remember it for pattern stale."""
        gradient = grad_outputs[0]
        trigger: Trigger = ctx.trigger
        if trigger.fires_now(ctx.microbatch):
            gradient = gradient.clone()
            trigger.fire(gradient, ElementRange.whole(gradient), "backward")
        elif trigger.remembers():
            trigger.remember(gradient, "backward")
        return gradient, None, None


class BackwardDrill(ModuleDrill):
    """Puts the node in front of the first input that takes a gradient.

    Only executions in which the drill fires get one, and with pattern stale those of the step before. An extra node can
    change the order in which autograd adds up the gradients of an input that is used in several places, and with it
    the last bit.
    """

    def __init__(self, trigger: Trigger, model: DrilledModel) -> None:
        super().__init__(trigger, model)
        self.handles.append(self.module.register_forward_pre_hook(self._before, with_kwargs=True))

    def _before(self, module: Module, args: object, kwargs: object) -> Any:
        execution, trigger = self.executions.begin(), self.trigger
        # A forward without gradients will be recomputed; the recompute gets the node.
        if execution is None or not torch.is_grad_enabled():
            return None
        if not (trigger.fires_now(execution.microbatch) or trigger.remembers()):
            return None
        inputs, found = replace_first(
            (args, kwargs),
            lambda tensor: tensor.requires_grad and tensor.is_floating_point(),
            lambda tensor: PoisonedInputGradient.apply(tensor, trigger, execution.microbatch),
        )
        if not found:
            trigger.why_not = "the module has no input that takes a gradient"
        return inputs
