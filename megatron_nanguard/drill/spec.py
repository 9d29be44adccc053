"""What one drill is: which values, where, when. No torch here: a spec is checked before anything is imported."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from megatron_nanguard.errors import DrillError


class Pattern(enum.Enum):
    """What is written over healthy values.

    Attributes:
        NAN: one element becomes NaN.
        POSITIVE_INF: one element becomes +Inf.
        NEGATIVE_INF: one element becomes -Inf.
        HUGE: one element becomes 1e30, finite in bf16 and fp32; Inf in fp16.
        ROW: a whole row along the last dim becomes NaN.
        HEAD: one attention head's slice of the last dim becomes NaN in every row.
        STALE: everything becomes what it was at the previous execution: a buffer that was not refreshed.
    """

    NAN = "nan"
    POSITIVE_INF = "inf"
    NEGATIVE_INF = "-inf"
    HUGE = "1e30"
    ROW = "row"
    HEAD = "head"
    STALE = "stale"


class Phase(enum.Enum):
    """Which values are overwritten.

    Attributes:
        FORWARD: the output of a module.
        BACKWARD: the gradient of a module's input.
        WGRAD: the `main_grad` of a parameter, before the data-parallel reduction.
        REDUCED: the same after the reduction, inside the part that this rank's optimizer consumes.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    WGRAD = "wgrad"
    REDUCED = "reduced"

    @property
    def target_key(self) -> str:
        """The key that names the target: modules have executions, parameters have gradients."""
        return "module" if self in (Phase.FORWARD, Phase.BACKWARD) else "param"


@dataclass(frozen=True)
class Drill:
    """One planted fault.

    Attributes:
        text: as the user wrote it.
        pattern: what is written.
        phase: over which values.
        first_step: first step it fires in, counted from 1 as in the training log.
        last_step: last step; None for no end.
        ranks: global ranks; None for all.
        target: global name of the module or parameter.
        microbatch: counted from 0; None for all.
        index: element, row or head; None for the first one there is.
        once: fires at its first execution only, so that a replay comes out clean.
    """

    text: str
    pattern: Pattern
    phase: Phase
    first_step: int
    last_step: int | None
    ranks: tuple[int, ...] | None
    target: str
    microbatch: int | None = None
    index: int | None = None
    once: bool = False

    def covers(self, step: int) -> bool:
        """Whether it fires in this step."""
        return self.first_step <= step and (self.last_step is None or step <= self.last_step)

    def includes(self, rank: int) -> bool:
        """Whether it fires on this rank."""
        return self.ranks is None or rank in self.ranks


def check_ranks(drills: Sequence[Drill], world_size: int) -> None:
    """Raise for a drill on a rank that this run does not have.

    Raises:
        DrillError: names the drill, the rank and the ranks there are.
    """
    for drill in drills:
        for rank in drill.ranks or ():
            if rank >= world_size:
                raise DrillError(f"drill {drill.text!r}: rank {rank} does not exist; the last one is {world_size - 1}")
