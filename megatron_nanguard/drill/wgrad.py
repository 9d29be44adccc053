"""Phase wgrad: the `main_grad` of a parameter, complete over all micro-batches, before the reduction."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn import Parameter

from megatron_nanguard.drill.planted import DrilledModel, PlantedDrill
from megatron_nanguard.drill.poison import ElementRange
from megatron_nanguard.drill.targets import find_entries
from megatron_nanguard.drill.trigger import Trigger
from megatron_nanguard.megatron_api.buffers import local_gradient


class WgradDrill(PlantedDrill):
    """Goes off when the bucket that holds the parameter is about to be reduced."""

    def __init__(self, trigger: Trigger, site: DrilledModel) -> None:
        super().__init__(trigger)
        params = [site.parameter_map.parameter(entry) for entry in find_entries(trigger.drill, site)]
        self._targets = {id(param): param for param in params}

    def before_reduction(self, params: Sequence[Parameter]) -> None:
        trigger = self.trigger
        if not (trigger.is_live() or trigger.is_watching()):
            return
        for param in params:
            if id(param) in self._targets:
                self._touch(param)

    def _touch(self, param: Parameter) -> None:
        gradient = local_gradient(param)
        if gradient is None:
            self.trigger.why_not = "the parameter had no gradient"
        elif self.trigger.is_live():
            part = ElementRange.from_start(param.shape, gradient.start, gradient.data.numel())
            self.trigger.fire(gradient.data, part, id(param))
        else:
            self.trigger.remember(gradient.data, id(param))
