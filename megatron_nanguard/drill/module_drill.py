"""What the phases forward and backward share: hooks on a module, and the first tensor of what it takes or returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.hooks import RemovableHandle

from megatron_nanguard.drill.executions import Executions
from megatron_nanguard.drill.targets import DrilledModel, find_module
from megatron_nanguard.drill.trigger import PlantedDrill, Trigger


class ModuleDrill(PlantedDrill):
    """A drill in a module: follows its micro-batches and owns the hooks on it."""

    def __init__(self, trigger: Trigger, model: DrilledModel) -> None:
        super().__init__(trigger)
        self.module, chunk = find_module(trigger.drill, model)
        self.executions = Executions(chunk)
        self.handles: list[RemovableHandle] = []

    def step_begins(self, step: int) -> None:
        super().step_begins(step)
        self.executions.step_begins()

    def step_ends(self) -> None:
        super().step_ends()
        self.executions.step_ends()

    def remove(self) -> None:
        self.executions.remove()
        for handle in self.handles:
            handle.remove()


def replace_first(
    value: Any, is_wanted: Callable[[Tensor], bool], change: Callable[[Tensor], Tensor]
) -> tuple[Any, bool]:
    """Change the first wanted tensor in nested tuples, lists and dicts, depth first.

    Returns:
        The same structure with one tensor changed, and whether there was one.
    """
    leaves, structure = tree_flatten(value)
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and is_wanted(leaf):
            leaves[number] = change(leaf)
            return tree_unflatten(leaves, structure), True
    return value, False
