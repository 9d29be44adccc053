"""Plants the drills of one rank, tells them where training stands, and says at the end which went off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from torch.nn import Module, Parameter

from megatron_nanguard.drill.backward import BackwardDrill
from megatron_nanguard.drill.forward import ForwardDrill
from megatron_nanguard.drill.planted import Planted, Site
from megatron_nanguard.drill.reduced import ReducedDrill
from megatron_nanguard.drill.spec import Drill, Pattern, Phase
from megatron_nanguard.drill.targets import is_here
from megatron_nanguard.drill.trigger import Trigger
from megatron_nanguard.drill.wgrad import WgradDrill
from megatron_nanguard.errors import DrillError
from megatron_nanguard.megatron_api.heads import head_width
from megatron_nanguard.parameters.registry import ParameterMap
from megatron_nanguard.records.drill import DrillFile, DrillOutcome

PHASES: Final[Mapping[Phase, Callable[[Trigger, Site], Planted]]] = {
    Phase.FORWARD: ForwardDrill,
    Phase.BACKWARD: BackwardDrill,
    Phase.WGRAD: WgradDrill,
    Phase.REDUCED: ReducedDrill,
}
"""What plants a drill of each phase."""


class DrillCrew:
    """The drills that name this rank."""

    def __init__(self, drills: Sequence[Drill], rank: int) -> None:
        self.drills = tuple(drill for drill in drills if drill.includes(rank))
        self.rank = rank
        self._planted: list[Planted] = []

    @property
    def fired(self) -> dict[str, int]:
        """How often each planted drill went off, by its text."""
        return {planted.trigger.drill.text: len(planted.trigger.steps_fired) for planted in self._planted}

    def attach(self, chunks: Sequence[Module], modules: Mapping[str, Module], parameter_map: ParameterMap) -> None:
        """Plant every drill whose target is here; one that says `rank=*` passes over ranks without its target.

        Raises:
            DrillError: a drill names this rank, but its target is not here, or not what its pattern needs.
        """
        site = Site(tuple(chunks), modules, parameter_map)
        width = head_width(site.chunks[0])
        for drill in self.drills:
            if drill.ranks is None and not is_here(drill, site):
                continue
            if drill.pattern is Pattern.HEAD and width is None:
                raise DrillError(f"drill {drill.text!r}: the model's config names no head width (kv_channels)")
            self._planted.append(PHASES[drill.phase](Trigger(drill, width), site))

    def step_begins(self, step: int) -> None:
        """To be called before the first micro-batch of a step, and again before those of a replay."""
        for planted in self._planted:
            planted.step_begins(step)

    def step_ends(self) -> None:
        """To be called when the step's gradients have been decided on."""
        for planted in self._planted:
            planted.step_ends()

    def before_reduction(self, params: Sequence[Parameter]) -> None:
        """To be called with the parameters of a bucket before its gradients are looked at and reduced."""
        for planted in self._planted:
            planted.before_reduction(params)

    def after_reduction(self) -> None:
        """To be called at the decision point, before the reduced gradients are looked at."""
        for planted in self._planted:
            planted.after_reduction()

    def detach(self) -> None:
        """Take every hook off the model; what was counted stays."""
        for planted in self._planted:
            planted.remove()

    def unfired(self) -> list[Drill]:
        """Drills that were planted on this rank and never went off: nothing was tested."""
        return [planted.trigger.drill for planted in self._planted if not planted.trigger.steps_fired]

    def record(self) -> DrillFile:
        """What became of the drills that name this rank."""
        triggers = {planted.trigger.drill: planted.trigger for planted in self._planted}
        return DrillFile(rank=self.rank, drills=tuple(_outcome(drill, triggers.get(drill)) for drill in self.drills))


def _outcome(drill: Drill, trigger: Trigger | None) -> DrillOutcome:
    if trigger is None:
        return DrillOutcome(text=drill.text, is_planted=False, fired=0, steps=(), why_not="its target is not here")
    steps = tuple(sorted(set(trigger.steps_fired)))
    why_not = None if steps else trigger.why_not or "its step or micro-batch never came"
    return DrillOutcome(text=drill.text, is_planted=True, fired=len(trigger.steps_fired), steps=steps, why_not=why_not)
