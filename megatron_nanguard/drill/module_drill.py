"""What the two phases have in common that watch a module at work."""

from __future__ import annotations

from torch.utils.hooks import RemovableHandle

from megatron_nanguard.drill.executions import Executions
from megatron_nanguard.drill.planted import DrilledModel, PlantedDrill
from megatron_nanguard.drill.targets import find_module
from megatron_nanguard.drill.trigger import Trigger


class ModuleDrill(PlantedDrill):
    """A drill in a module: knows which micro-batch the module works on, and which hooks to take off again."""

    def __init__(self, trigger: Trigger, site: DrilledModel) -> None:
        super().__init__(trigger)
        self.module, chunk = find_module(trigger.drill, site)
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
