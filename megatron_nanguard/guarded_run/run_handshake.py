"""The handshakes of this process: one per parallel world, each under its own prefix of the rendezvous store."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

import torch.distributed as dist

from megatron_nanguard.coordination.handshake import Agreement, Declaration, Handshake
from megatron_nanguard.coordination.store import Store, host_client, own_client, within
from megatron_nanguard.coordination.voting_ranks import VotingRanks
from megatron_nanguard.settings import Settings
from megatron_nanguard.time_limit import SideThread, TookTooLong
from megatron_nanguard.version import __version__

STORE_SECONDS = 5.0
"""Longest wait for the store where a line of the log depends on it."""


class RunHandshake:
    """Meets the ranks of a parallel world once, and numbers the optimizers that are built in it.

    Args:
        ranks: the parallel world.
        ordinal: number of the handshake in this process.
        waits: the guard is on here and waits for the others; without it this rank only says that it is off.
    Attributes:
        side: the thread that asks the store.
    """

    def __init__(self, ranks: Sequence[int], ordinal: int, *, waits: bool = True) -> None:
        self.ranks = tuple(ranks)
        self.rank = dist.get_rank()
        # One connection for everything: rank 0 serves them all, and a new one may wait for name servers.
        connect = own_client if waits else host_client
        self._client = connect(f"nanguard/{ordinal}/{self.ranks[0]}-{self.ranks[-1]}")
        self.side = SideThread("nanguard-store")
        self._num_optimizers = 0

    def declare_off(self) -> None:
        """Say that this rank runs without the guard, so that no rank waits for it. Never waits."""
        self._handshake().stand_aside(Declaration(False, __version__, ""))

    def agree(self, settings: Settings, declined: Sequence[str]) -> Agreement:
        """Meet the others, at most ``--nanguard-deadline`` seconds.

        Args:
            settings: must be equal on all ranks.
            declined: patch groups that are missing here, which must be the same on all ranks as well.
        """
        mine = Declaration(True, __version__, settings.digest(), ", ".join(sorted(declined)))
        run_id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"
        return self._handshake().agree(mine, run_id, settings.deadline)

    def voting_ranks(self) -> VotingRanks:
        """The ranks that vote on the next optimizer this rank builds; this rank is registered among them."""
        self._num_optimizers += 1
        voting_ranks = VotingRanks(self.store(f"optimizer/{self._num_optimizers}"), self.ranks, self.rank)
        voting_ranks.register()
        return voting_ranks

    def store(self, purpose: str) -> Store:
        """The keys of one purpose."""
        return within(self._client, purpose)

    def is_first(self, what: str) -> bool:
        """Whether no rank of this world has asked for this before. Never waits for another rank."""
        try:
            return self.side.do(lambda: int(self.store("first").add(what, 1)) == 1, STORE_SECONDS)
        except (RuntimeError, TookTooLong):
            return True  # the store is gone or hangs: better logged twice than not at all

    def _handshake(self) -> Handshake:
        return Handshake(self.store("handshake"), self.ranks, self.rank)
