"""Plant the drills of one rank, forward steps and reductions to them, and report at the end which fired."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from torch.nn import Module, Parameter

from megatron_nanguard.drill.backward import BackwardDrill
from megatron_nanguard.drill.forward import ForwardDrill
from megatron_nanguard.drill.main_grad import ReducedDrill, WgradDrill
from megatron_nanguard.drill.spec import Drill, Pattern, Phase
from megatron_nanguard.drill.targets import DrilledModel
from megatron_nanguard.drill.trigger import PlantedDrill, Trigger
from megatron_nanguard.errors import DrillError
from megatron_nanguard.megatron_api.model_chunks import head_width
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.records.run.drill import DrillFile, DrillOutcome

PHASES: Final[Mapping[Phase, Callable[[Trigger, DrilledModel], PlantedDrill]]] = {
    Phase.FORWARD: ForwardDrill,
    Phase.BACKWARD: BackwardDrill,
    Phase.WGRAD: WgradDrill,
    Phase.REDUCED: ReducedDrill,
}
"""What plants a drill of each phase."""


class PlantedDrills:
    """The drills that name this rank, and after `attach` their hooks."""

    def __init__(self, drills: Sequence[Drill], rank: int) -> None:
        self.drills = tuple(drill for drill in drills if drill.includes(rank))
        self.rank = rank
        self._planted: list[PlantedDrill] = []
        self._without_target: dict[Drill, str] = {}

    def attach(self, chunks: Sequence[ModelChunk], modules: Mapping[str, Module], parameter_map: ParameterMap) -> None:
        """Plant every drill whose target is on this rank. A drill with `rank=*` skips ranks without its target.

        Raises:
            DrillError: a drill names this rank, but its target is missing here or does not suit its pattern.
        """
        model = DrilledModel(tuple(chunks), modules, parameter_map, head_width(chunks[0]))
        for drill in self.drills:
            if drill.pattern is Pattern.HEAD and model.head_width is None:
                raise DrillError(f"drill {drill.text!r}: the model's config names no head width (kv_channels)")
            try:
                self._planted.append(PHASES[drill.phase](Trigger(drill, model.head_width), model))
            except DrillError as error:
                if drill.ranks is not None:
                    raise
                self._without_target[drill] = str(error)

    def step_begins(self, step: int) -> None:
        """Called before the first micro-batch of a step, and again before those of a replay."""
        for planted in self._planted:
            planted.step_begins(step)

    def step_ends(self) -> None:
        """Called after the decision on the step."""
        for planted in self._planted:
            planted.step_ends()

    def before_reduction(self, params: Sequence[Parameter]) -> None:
        """Called with the parameters of a bucket before its gradients are checked and reduced."""
        for planted in self._planted:
            planted.before_reduction(params)

    def after_reduction(self) -> None:
        """Called at the decision point, before the reduced gradients are checked."""
        for planted in self._planted:
            planted.after_reduction()

    def detach(self) -> None:
        """Remove every hook from the model; the counts stay."""
        for planted in self._planted:
            planted.remove()

    def without_target(self) -> list[Drill]:
        """Return drills with `rank=*` whose target is not on this rank; if it is on no rank, the name is mistyped."""
        return list(self._without_target)

    def record(self) -> DrillFile:
        """Return how often each drill that names this rank fired, or why it did not."""
        planted = [_outcome(planted.trigger) for planted in self._planted]
        missing = [
            DrillOutcome(text=drill.text, is_planted=False, fired=0, steps=(), why_not=reason)
            for drill, reason in self._without_target.items()
        ]
        return DrillFile(rank=self.rank, drills=(*planted, *missing))


def _outcome(trigger: Trigger) -> DrillOutcome:
    fired = trigger.steps_fired
    why_not = None if fired else trigger.why_not or "its step or micro-batch never came"
    return DrillOutcome(
        text=trigger.drill.text, is_planted=True, fired=len(fired), steps=tuple(sorted(set(fired))), why_not=why_not
    )
