"""Counting what a watch costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode


class HostReads(TorchDispatchMode):
    """Counts the values that the host reads from tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func).startswith("aten._local_scalar_dense")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def host_reads() -> Callable[[Callable[[], Any]], int]:
    """How many values the host reads while something runs."""

    def count(run: Callable[[], Any]) -> int:
        with HostReads() as reads:
            run()
        return reads.count

    return count
