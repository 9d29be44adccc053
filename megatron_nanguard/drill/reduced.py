"""Phase reduced: a parameter's gradient after the reduction, inside the part that this rank's optimizer consumes."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from megatron_nanguard.drill.planted import DrilledModel, PlantedDrill
from megatron_nanguard.drill.poison import ElementRange
from megatron_nanguard.drill.targets import find_entries
from megatron_nanguard.drill.trigger import Trigger
from megatron_nanguard.megatron_api.pieces import reduced_pieces


class ReducedDrill(PlantedDrill):
    """Goes off at the decision point, before anybody looks at the reduced gradients."""

    def __init__(self, trigger: Trigger, site: DrilledModel) -> None:
        super().__init__(trigger)
        self._site = site
        find_entries(trigger.drill, site)

    def after_reduction(self) -> None:
        trigger = self.trigger
        if not (trigger.is_live() or trigger.is_watching()):
            return
        for source, (values, part) in enumerate(self._parts()):
            if trigger.is_live():
                trigger.fire(values, part, source)
            else:
                trigger.remember(values, source)

    def _parts(self) -> Iterator[tuple[Tensor, ElementRange]]:
        """The parts of the target that this rank owns, in an order that is the same in every step."""
        for piece in reduced_pieces(self._site.chunks):
            for entry, start, end, offset in self._site.parameter_map.segments(piece):
                if entry.name == self.trigger.drill.target:
                    yield piece.data[start:end], ElementRange.from_start(entry.shape, offset, end - start)
