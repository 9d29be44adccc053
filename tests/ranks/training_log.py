"""What Megatron's training log says of each step."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.import_server import Finished

STEP = re.compile(r"iteration +(\d+)/.* lm loss: (\S+) .* grad norm: (\S+) ")


@dataclass(frozen=True)
class Step:
    """One line of the log.

    Attributes:
        number: As printed, the first is 1.
        loss: `lm loss`.
        grad_norm: `grad norm`.
    """

    number: int
    loss: float
    grad_norm: float


def steps_of(finished: Finished) -> list[Step]:
    """The steps of a run that ended well, each of which has a loss and a gradient norm."""
    assert finished.code == 0, finished.out
    found = (STEP.search(line) for line in finished.out.splitlines())
    return [Step(int(match[1]), float(match[2]), float(match[3])) for match in found if match]
