"""When a drill goes off, and how often it did."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from megatron_nanguard.drill.poison import ElementRange, poison
from megatron_nanguard.drill.spec import Drill, Pattern
from megatron_nanguard.errors import DrillError


class Trigger:
    """One drill on this rank. A step that was begun and not ended is open; outside of it nothing happens."""

    def __init__(self, drill: Drill, head_width: int | None) -> None:
        self.drill = drill
        self.step: int | None = None
        self.steps_fired: list[int] = []
        """One entry per time it went off, replays included."""
        self.why_not: str | None = None
        """What hindered it the last time it should have gone off."""
        self._head_width = head_width
        self._previous: dict[Hashable, Tensor] = {}

    def is_live(self, microbatch: int | None = None) -> bool:
        """Whether it goes off at this execution."""
        spent = self.drill.once and self.steps_fired
        return (
            self.step is not None
            and self.drill.covers(self.step)
            and self.drill.microbatch in (None, microbatch)
            and not spent
        )

    def is_watching(self) -> bool:
        """Whether values are kept in this step because the next execution may be told to repeat them."""
        return (
            self.drill.pattern is Pattern.STALE
            and self.step is not None
            and (self.drill.covers(self.step) or self.drill.covers(self.step + 1))
        )

    def fire(self, values: Tensor, part: ElementRange, source: Hashable) -> None:
        """Overwrite values in place and count; where that cannot be done, leave them and remember why.

        Args:
            values: see `poison`.
            part: see `poison`.
            source: tells apart values that come back separately, such as a forward from its recompute.
        """
        assert self.step is not None
        try:
            poison(values, part, self.drill, self._previous.get(source), self._head_width)
        except DrillError as error:
            self.why_not = f"step {self.step}: {error}"
        else:
            self.steps_fired.append(self.step)

    def remember(self, values: Tensor, source: Hashable) -> None:
        """Keep a copy of an execution that did not go off; one that did has refreshed nothing."""
        self._previous[source] = values.detach().clone()
