"""Compare the gradients of a step with those of its first run, on one rank.

rank 5, step 3: 44 of 46 gradients are the same bit for bit
  differs  decoder.layers.3.mlp.linear_fc1.weight, already before the reduction
  differs  decoder.layers.3.mlp.linear_fc1.bias
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from megatron_nanguard.records.step.capture import CaptureFile

SHOWN = 24
"""At most so many parameters are listed."""


@dataclass(frozen=True)
class Comparison:
    """Two runs of one step.

    Attributes:
        rank: global rank.
        step: as the training log counts it.
        num_gradients: of the captured step.
        differs: parameters whose gradients differ, or are missing in one of the two runs.
        differs_before: parameters whose norms before the reduction differ, where both runs have them.
        notes: differences between the runs that may explain different gradients.
    """

    rank: int
    step: int
    num_gradients: int
    differs: tuple[str, ...]
    differs_before: frozenset[str]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, record: CaptureFile, gradients: Mapping[str, str], norms: Mapping[str, float]) -> Comparison:
        """Compare this run of the step with the captured one.

        Args:
            record: of the captured step.
            gradients: digests of this run.
            norms: of this run before the reduction; empty where none were taken.
        """
        both = [*record.gradients, *(name for name in gradients if name not in record.gradients)]
        notes = [f"not in the capture: {what}" for what in record.left_out]
        if record.level == "step":
            notes.append("the capture holds no weights (--nanguard-capture step): they are this job's own")
        return cls(
            rank=record.coordinates.rank,
            step=record.step,
            num_gradients=len(record.gradients),
            differs=tuple(name for name in both if record.gradients.get(name) != gradients.get(name)),
            differs_before=frozenset(
                name for name, norm in record.norms.items() if name in norms and not _same(norm, norms[name])
            ),
            notes=tuple(notes),
        )

    @property
    def exact(self) -> bool:
        """Every gradient is the same bit for bit."""
        return not self.differs

    def __str__(self) -> str:
        equal = max(self.num_gradients - len(self.differs), 0)
        same = f"{equal} of {self.num_gradients} gradients are the same bit for bit"
        lines = [f"rank {self.rank}, step {self.step}: {same}"]
        for name in self.differs[:SHOWN]:
            before = ", already before the reduction" if name in self.differs_before else ""
            lines.append(f"  differs  {name}{before}")
        if len(self.differs) > SHOWN:
            lines.append(f"  and {len(self.differs) - SHOWN} more")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
