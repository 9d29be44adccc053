"""How a run of several ranks ended: which rank failed first, and what the launcher returns."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

POLICY_EXIT = 65  # every rank leaves with it together, on purpose
TIMEOUT_EXIT = 124


@dataclass(frozen=True)
class Ending:
    """How one rank ended by itself.

    Attributes:
        status: Exit code, or minus the number of the signal that killed it.
        at: Monotonic seconds at which it failed, by its own stamp, else at which it was found ended.
    """

    status: int
    at: float

    @property
    def code(self) -> int:
        """As a shell reports it: 128 + signal."""
        return self.status if self.status >= 0 else 128 - self.status

    @property
    def words(self) -> str:
        """`exit code 3` or `signal SIGKILL`."""
        return f"exit code {self.status}" if self.status >= 0 else f"signal {signal.Signals(-self.status).name}"


@dataclass(frozen=True)
class JobResult:
    """The result of a launch.

    Attributes:
        code: Exit code of the launcher.
        codes: Rank to exit code (128 + signal), of the ranks that ended by themselves; the others were brought down.
    """

    code: int
    codes: Mapping[int, int]


def failures(endings: Mapping[int, Ending]) -> dict[int, Ending]:
    """The ranks that did not end with 0."""
    return {rank: ending for rank, ending in endings.items() if ending.status != 0}


def is_policy_exit(endings: Mapping[int, Ending], nproc: int) -> bool:
    """Whether all ranks left with the code of the policy: a decision, no crash."""
    return len(endings) == nproc and all(ending.status == POLICY_EXIT for ending in endings.values())


def first_failure(endings: Mapping[int, Ending]) -> int:
    """Rank that failed first.

    Leaving with the policy's code follows from what others did, so it counts last. A rank that a signal killed could
    leave no stamp and its peers notice before it is found ended, so it counts first.

    Args:
        endings: At least one of them a failure.
    """
    failed = failures(endings)

    def order(rank: int) -> tuple[bool, bool, float]:
        ending = failed[rank]
        return ending.status == POLICY_EXIT, ending.status >= 0, ending.at

    return min(failed, key=order)
