"""The ranks that vote on an optimizer: those that built it, fixed when the first of them decides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from megatron_nanguard.coordination.store import Store, decide_once


@dataclass(frozen=True, eq=False)
class Voters:
    """The ranks that vote on an optimizer, and the group on which they exchange integers.

    Attributes:
        ranks: ascending.
        group: None for the default group, when every rank of the world votes.
    """

    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None


class VotingRanks:
    """Finds the voters of one optimizer over the store.

    Args:
        store: client whose prefix names the run and the optimizer's running number.
        ranks: the parallel world.
        rank: this rank.
    """

    def __init__(self, store: Store, ranks: Sequence[int], rank: int) -> None:
        self._store, self._ranks, self._rank = store, tuple(ranks), rank
        self._voters: Voters | None = None

    def register(self) -> None:
        """Register this rank as one that built the optimizer. Never waits."""
        self._store.set(f"built/{self._rank}", "1")
        self._store.add("built", 1)

    def voters(self) -> Voters | None:
        """Return the voters; None on a rank that is not among them.

        All ranks that exchange gradients have built the optimizer before any of them decides, so the first rank to ask
        sees them all.

        Collective: the first call makes a group of the voters where these are not the whole world.
        """
        if self._voters is None:
            ranks = self._fixed()
            if self._rank not in ranks:
                return None
            whole = len(ranks) == dist.get_world_size()
            self._voters = Voters(ranks, None if whole else _group_of(ranks))
        return self._voters

    def _fixed(self) -> tuple[int, ...]:
        if int(self._store.add("built", 0)) == len(self._ranks):
            ranks = list(self._ranks)
        else:
            ranks = [rank for rank in self._ranks if self._store.check([f"built/{rank}"])]
        return tuple(json.loads(decide_once(self._store, "voters", json.dumps(ranks))))


def _group_of(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    group = dist.new_group(list(ranks), use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup), "this rank is one of the voters"
    return group
