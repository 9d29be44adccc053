"""A barrier in the store, with a deadline, that says which ranks are missing and what they were doing."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from megatron_nanguard.coordination.store import Store, decide_once, wait_for


class RanksMissing(Exception):
    """Some ranks did not reach a barrier; raised on all ranks that did.

    Attributes:
        at: missing rank to its last activity.
    """

    def __init__(self, stage: str, at: Mapping[int, str]) -> None:
        super().__init__(f"{stage}: ranks {', '.join(map(str, at))} did not come")
        self.at = dict(at)


class StoreBarrier:
    """The ranks of one screening, and the values that they share.

    Args:
        store: a client of its own, with a prefix for the screening.
        rank: this rank.
        world: number of ranks.
    """

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self._store = store

    def set_activity(self, what: str) -> None:
        """Publish what this rank does next, in case it hangs there."""
        self._store.set(f"at/{self.rank}", what)

    def wait(self, stage: str, seconds: float) -> None:
        """Wait until every rank has finished a stage.

        Raises:
            RanksMissing: on every rank that came in time, when others did not.
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
            began = [rank for rank in missing if self._store.check([f"at/{rank}"])]
            at = {rank: self._store.get(f"at/{rank}").decode() for rank in began}
            raise RanksMissing(stage, dict.fromkeys(missing, "the start") | at)

    def mark(self, name: str) -> None:
        """Set a flag that every rank sees after the next barrier."""
        self._store.set(f"mark/{name}", "1")
        self._store.add("marks", 1)

    def is_marked(self, name: str) -> bool:
        """Whether any rank set this flag."""
        return int(self._store.add("marks", 0)) > 0 and bool(self._store.check([f"mark/{name}"]))

    def store_result(self, result: str) -> None:
        """Publish the result of this rank."""
        self._store.set(f"result/{self.rank}", result)
        self._store.add("results", 1)

    def results(self, awaited: int, seconds: float) -> tuple[bytes, ...]:
        """Results in the order of ranks, when enough have come or the time is over.

        Args:
            awaited: number of results to wait for.
            seconds: longest wait.
        """
        self._count_to("results", awaited, seconds)
        there = [f"result/{rank}" for rank in range(self.world) if self._store.check([f"result/{rank}"])]
        return tuple(self._store.get(key) for key in there)

    def set_exit_code(self, code: int) -> None:
        """Publish the exit code for all ranks."""
        self._store.set("code", str(code))

    def exit_code(self, seconds: float) -> int:
        """Wait for the exit code; 1 when it was not published in time."""
        return int(self._store.get("code")) if wait_for(self._store, "code", seconds) else 1

    def leave(self, others: int, seconds: float) -> None:
        """Leave the screening; rank 0, which may hold the store, waits until the others have read from it.

        Args:
            others: number of other ranks.
            seconds: longest wait.
        """
        self._store.add("left", 1)
        if self.rank == 0:
            self._count_to("left", others + 1, seconds)

    def _count_to(self, counter: str, number: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while int(self._store.add(counter, 0)) < number and time.monotonic() < until:
            time.sleep(0.02)
