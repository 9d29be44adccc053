"""Local work of an incident, shielded stage by stage: a fault of ours costs the result of its stage, and nothing else.

The guard stays on: signal, vote and policy need none of it. A stage that failed on a rank is left out there in later
incidents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.records.phrase import phrase

Result = TypeVar("Result")


class StageFaults:
    """The stages that failed on this rank.

    Args:
        earlier: fault by stage, of the incidents before; this one's are added to it.
    """

    def __init__(self, earlier: dict[str, str]) -> None:
        self._all = earlier
        self._earlier = dict(earlier)
        self.now: dict[str, str] = {}
        """Fault by stage, of this incident."""

    def attempt(self, stage: str, work: Callable[[], Result], otherwise: Result, *, is_vital: bool = False) -> Result:
        """Do local work of a stage; never a collective.

        Args:
            otherwise: the result where it fails, or has failed in an earlier incident.
            is_vital: it is done even if it failed in an earlier incident.
        """
        if stage in self.now or (stage in self._all and not is_vital):
            return otherwise
        shield = Shield()
        with shield(f"incident, {stage}"):
            result = work()
            self._earlier.pop(stage, None)
            return result
        self._all[stage] = self.now[stage] = str(shield.fault)
        return otherwise

    def notes(self) -> tuple[str, ...]:
        """Sentences for the post-mortem of this rank; later ones are added at the end."""
        before = (
            phrase("left out, since it failed in an earlier incident: {fault}", fault=fault)
            for fault in self._earlier.values()
        )
        now = (phrase("a part of the guard failed on this rank: {fault}", fault=fault) for fault in self.now.values())
        return (*before, *now)
