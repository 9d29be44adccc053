"""Phases wgrad and reduced: the `main_grad` of a parameter, before and after the data-parallel reduction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.nn import Parameter

from megatron_nanguard.drill.poison import ElementRange
from megatron_nanguard.drill.targets import DrilledModel, find_entries
from megatron_nanguard.drill.trigger import PlantedDrill, Trigger
from megatron_nanguard.megatron_api.buffers import local_gradient
from megatron_nanguard.megatron_api.pieces import reduced_pieces


class WgradDrill(PlantedDrill):
    """Fires when the bucket of the parameter is about to be reduced, with the sum over all micro-batches complete."""

    def __init__(self, trigger: Trigger, model: DrilledModel) -> None:
        super().__init__(trigger)
        params = [model.parameter_map.parameter(entry) for entry in find_entries(trigger.drill, model)]
        self._targets = {id(param): param for param in params}

    def before_reduction(self, params: Sequence[Parameter]) -> None:
        trigger = self.trigger
        if not (trigger.fires_now() or trigger.remembers()):
            return
        for param in params:
            if id(param) in self._targets:
                self._touch(param)

    def _touch(self, param: Parameter) -> None:
        gradient = local_gradient(param)
        if gradient is None:
            self.trigger.why_not = "the parameter had no gradient"
        elif self.trigger.fires_now():
            part = ElementRange.from_start(param.shape, gradient.start, gradient.data.numel())
            self.trigger.fire(gradient.data, part, id(param))
        else:
            self.trigger.remember(gradient.data, id(param))


class ReducedDrill(PlantedDrill):
    """Fires at the decision point, before the guard checks the reduced gradients; only in this rank's part of them."""

    def __init__(self, trigger: Trigger, model: DrilledModel) -> None:
        super().__init__(trigger)
        self._model = model
        find_entries(trigger.drill, model)

    def after_reduction(self) -> None:
        trigger = self.trigger
        if not (trigger.fires_now() or trigger.remembers()):
            return
        for source, (values, part) in enumerate(self._parts()):
            if trigger.fires_now():
                trigger.fire(values, part, source)
            else:
                trigger.remember(values, source)

    def _parts(self) -> Iterator[tuple[Tensor, ElementRange]]:
        """The parts of the target that this rank owns, in an order that is the same in every step."""
        for piece in reduced_pieces(self._model.chunks):
            for entry, (_, start, end, offset) in self._model.parameter_map.segments(piece):
                if entry.name == self.trigger.drill.target:
                    yield piece.data[start:end], ElementRange.from_start(entry.shape, offset, end - start)
