"""One drill on this rank: when it fires, how often it did, and the base class of what plants it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor
from torch.nn import Parameter

from megatron_nanguard.drill.poison import ElementRange, poison
from megatron_nanguard.drill.spec import Drill, Pattern
from megatron_nanguard.errors import DrillError


class Trigger:
    """Decides when a drill fires, and counts. Between `step_ends` and `step_begins` it never fires."""

    def __init__(self, drill: Drill, head_width: int | None) -> None:
        self.drill = drill
        self.step: int | None = None
        self.steps_fired: list[int] = []
        """The step of each firing, replays included."""
        self.why_not: str | None = None
        """Why it could not fire the last time it should have."""
        self._head_width = head_width
        self._previous: dict[Hashable, Tensor] = {}

    def fires_now(self, microbatch: int | None = None) -> bool:
        """Say whether it fires at this execution."""
        spent = self.drill.once and self.steps_fired
        return (
            self.step is not None
            and self.drill.covers(self.step)
            and self.drill.microbatch in (None, microbatch)
            and not spent
        )

    def remembers(self) -> bool:
        """Say whether to remember the values of this step: pattern stale may repeat them at the next execution."""
        return (
            self.drill.pattern is Pattern.STALE
            and self.step is not None
            and (self.drill.covers(self.step) or self.drill.covers(self.step + 1))
        )

    def fire(self, values: Tensor, part: ElementRange, source: Hashable) -> None:
        """Overwrite values in place and count. If the pattern does not fit them, leave them and note why.

        Args:
            values: see `poison`.
            part: see `poison`.
            source: key under which `remember` stored earlier values, such as "forward" or "recompute".
        """
        assert self.step is not None
        try:
            poison(values, part, self.drill, self._previous.get(source), self._head_width)
        except DrillError as error:
            self.why_not = f"step {self.step}: {error}"
        else:
            self.steps_fired.append(self.step)

    def remember(self, values: Tensor, source: Hashable) -> None:
        """Keep a copy of the values of an execution in which the drill did not fire, for pattern stale."""
        self._previous[source] = values.detach().clone()


class PlantedDrill:
    """A drill on its target. Each phase overrides the methods it needs."""

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger

    def step_begins(self, step: int) -> None:
        """Called when a training step or its replay begins: micro-batches count from 0 again."""
        self.trigger.step = step

    def step_ends(self) -> None:
        """Called after the decision: what runs until the next step, such as an evaluation, is not touched."""
        self.trigger.step = None

    def before_reduction(self, params: Sequence[Parameter]) -> None:
        """Called when the gradients of these parameters are complete and about to be reduced."""

    def after_reduction(self) -> None:
        """Called when all gradients are reduced, before they are checked."""

    def remove(self) -> None:
        """Remove the hooks."""
