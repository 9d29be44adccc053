"""Several ranks as threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


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
