"""Where ranks meet between two stages: in the store, with a deadline, and with a word on where the late ones are."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from megatron_nanguard.coordination.store import Store, decide_once, wait_for


class RanksMissing(Exception):
    """Some ranks did not come to a meeting; all that came know it.

    Attributes:
        at: rank to what it was doing.
    """

    def __init__(self, stage: str, at: Mapping[int, str]) -> None:
        super().__init__(f"{stage}: ranks {', '.join(map(str, at))} did not come")
        self.at = dict(at)


class StoreBarrier:
    """The ranks of one screening.

    Args:
        store: own client, under a prefix that names the screening.
        rank: this rank.
        world: number of ranks.
    """

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self._store = store

    def set_activity(self, what: str) -> None:
        """Say what this rank does next, should it never come back from it."""
        self._store.set(f"at/{self.rank}", what)

    def wait(self, stage: str, seconds: float) -> None:
        """Wait until every rank has done a stage.

        Raises:
            RanksMissing: on every rank that came, when some did not in time.
        Store: every rank waits for one key.
        """
        self._store.set(f"{stage}/rank/{self.rank}", "1")
        if int(self._store.add(f"{stage}/arrived", 1)) == self.world:
            decide_once(self._store, f"{stage}/missing", "[]")
        elif not wait_for(self._store, f"{stage}/missing", seconds):
            missing = [rank for rank in range(self.world) if not self._store.check([f"{stage}/rank/{rank}"])]
            decide_once(self._store, f"{stage}/missing", json.dumps(missing))
        missing = json.loads(self._store.get(f"{stage}/missing"))
        if missing:
            raise RanksMissing(stage, {rank: self._read(f"at/{rank}") for rank in missing})

    def mark(self, name: str) -> None:
        """Leave a mark that every rank sees after the next barrier."""
        self._store.set(f"mark/{name}", "1")
        self._store.add("marks", 1)

    def is_marked(self, name: str) -> bool:
        """Whether some rank left this mark."""
        return int(self._store.add("marks", 0)) > 0 and bool(self._store.check([f"mark/{name}"]))

    def store_result(self, result: str) -> None:
        """Leave this rank's result."""
        self._store.set(f"result/{self.rank}", result)
        self._store.add("results", 1)

    def results(self, awaited: int, seconds: float) -> tuple[bytes, ...]:
        """The results that were handed in, by rank, once as many are there or the time is over."""
        self._count_to("results", awaited, seconds)
        there = [f"result/{rank}" for rank in range(self.world) if self._store.check([f"result/{rank}"])]
        return tuple(self._store.get(key) for key in there)

    def set_exit_code(self, code: int) -> None:
        """Tell everyone the exit code."""
        self._store.set("code", str(code))

    def exit_code(self, seconds: float) -> int:
        """The exit code; 1 when nobody told it in time."""
        return int(self._store.get("code")) if wait_for(self._store, "code", seconds) else 1

    def leave(self, others: int, seconds: float) -> None:
        """Leave; the rank that may hold the store waits for the others, which still read from it.

        Args:
            others: how many there are.
            seconds: longest wait.
        """
        self._store.add("left", 1)
        if self.rank == 0:
            self._count_to("left", others + 1, seconds)

    def _count_to(self, counter: str, number: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while int(self._store.add(counter, 0)) < number and time.monotonic() < until:
            time.sleep(0.02)

    def _read(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else "the start"
