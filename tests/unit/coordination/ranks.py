"""Several ranks of a handshake as threads, each with a client of its own of one real store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch._C._distributed_c10d import PrefixStore, Store

Result = TypeVar("Result")


def client(store: Callable[[], Store], purpose: str = "handshake") -> Store:
    """What `own_client` gives a rank."""
    return PrefixStore(f"nanguard/1/0-3/{purpose}", store())


def together(work: Mapping[int, Callable[[], Result]], delays: Mapping[int, float] | None = None) -> dict[int, Result]:
    """Run what each rank does at the same time, some later than the others; their results by rank."""
    start = threading.Barrier(len(work))

    def run(rank: int) -> Any:
        start.wait()
        time.sleep((delays or {}).get(rank, 0.0))
        return work[rank]()

    with ThreadPoolExecutor(len(work)) as pool:
        futures = {rank: pool.submit(run, rank) for rank in work}
        return {rank: future.result(timeout=30) for rank, future in futures.items()}
