"""Before the first step: does every rank of the parallel world have the guard, the same one, with the same options?

Each rank writes one key and adds to two counters; the last one to arrive writes the agreement, which all read. Ranks
read each other's keys only to name those that differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from megatron_nanguard.coordination.store import Store, decide_once, wait_for

AGREEMENT_KEY: Final = "verdict"
"""Ranks with another version of this package wait for the same key."""


@dataclass(frozen=True)
class Declaration:
    """What a rank declares of itself.

    Attributes:
        on: the guard is switched on.
        version: of this package.
        options: digest of the settings.
        declined: patch groups that could not be applied here.
    """

    on: bool
    version: str
    options: str
    declined: str = ""


@dataclass(frozen=True)
class Agreement:
    """The outcome of a handshake, the same on all ranks.

    Attributes:
        reason: why the guard does not start, naming the ranks that differ; empty when all ranks declared the same.
        run_id: name of the run.
        speaker: the rank that logs what concerns all of them.
    """

    reason: str
    run_id: str
    speaker: int


class Handshake:
    """One handshake over one parallel world.

    Args:
        store: client of the rendezvous store, under a prefix that no other handshake has.
        ranks: the parallel world.
        rank: this rank.
    """

    def __init__(self, store: Store, ranks: Sequence[int], rank: int) -> None:
        self._store, self._ranks, self._rank = store, tuple(ranks), rank

    def stand_aside(self, mine: Declaration) -> None:
        """Declare without waiting; the last to arrive still writes the agreement, for the others wait for it."""
        if self.declare(mine):
            self._agree_once("", *self._different_ranks())

    def declare(self, mine: Declaration) -> bool:
        """Write this rank's declaration: one write and two additions, no wait. True on the last rank to arrive."""
        self._store.set(f"rank/{self._rank}", json.dumps(asdict(mine)))
        self._store.add(f"kind/{mine}", 1)
        return int(self._store.add("arrived", 1)) == len(self._ranks)

    def agree(self, mine: Declaration, run_id: str, seconds: float) -> Agreement:
        """Declare, then wait for the agreement, at most ``seconds``.

        Store: every rank waits for one key.
        """
        if self.declare(mine):
            are_same = int(self._store.add(f"kind/{mine}", 0)) == len(self._ranks)
            different, reason = ([], "") if are_same else self._different_ranks()
            self._agree_once(run_id, different, reason)
        elif not wait_for(self._store, AGREEMENT_KEY, seconds):
            different, reason = self._different_ranks()
            self._agree_once(run_id, different, reason or f"the handshake took longer than {seconds:g} s")
        agreed = json.loads(self._store.get(AGREEMENT_KEY))
        return Agreement(agreed["reason"], agreed["run_id"], agreed["speaker"])

    def _agree_once(self, run_id: str, different: Sequence[int], reason: str) -> None:
        """Write the agreement, unless another rank has done so."""
        speaker = next((rank for rank in self._ranks if rank not in different), self._ranks[0])
        decide_once(self._store, AGREEMENT_KEY, json.dumps({"run_id": run_id, "reason": reason, "speaker": speaker}))

    def _different_ranks(self) -> tuple[list[int], str]:
        """Ranks that are missing or differ from the majority, and the sentence that names them."""
        declared = {
            rank: Declaration(**json.loads(self._store.get(f"rank/{rank}")))
            for rank in self._ranks
            if self._store.check([f"rank/{rank}"])
        }
        missing = [rank for rank in self._ranks if rank not in declared]
        counted = Counter(one for one in declared.values() if one.on) or Counter(declared.values())
        usual = counted.most_common(1)[0][0]
        sentences = [f"rank{_s(missing)} did not answer"] if missing else []
        for what, ranks in _differences(declared, usual).items():
            sentences.append(f"rank{_s(ranks)} {what}")
        different = [rank for rank in self._ranks if declared.get(rank) != usual]
        return different, "; ".join(sentences)


def _differences(declared: dict[int, Declaration], usual: Declaration) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, one in declared.items():
        if not one.on:
            found.setdefault("started without --nanguard", []).append(rank)
        elif one.version != usual.version:
            found.setdefault(f"came with version {one.version}, the others {usual.version}", []).append(rank)
        elif one.options != usual.options:
            found.setdefault("got other options", []).append(rank)
        elif one.declined != usual.declined:
            found.setdefault(f"came without patch groups {one.declined or 'none'}", []).append(rank)
    return found


def _s(ranks: Sequence[int]) -> str:
    """`` 3`` or ``s 3, 5, 7 and 12 more``."""
    listed = ", ".join(str(rank) for rank in ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"s {listed}" if len(ranks) > 1 else f" {listed}"
