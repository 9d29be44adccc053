"""One real store for all tests of a file; each test has a corner of its own in it."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

Clients = Callable[[int], Store]


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    """The connection of each rank, made when first asked for: torch looks names up for every new one, which is slow."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = {-1: dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)}

    def client(rank: int) -> Store:
        if rank not in made:
            made[rank] = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
        return made[rank]

    yield client


numbers = itertools.count()


@pytest.fixture
def store(clients: Clients) -> Clients:
    """``store(rank)`` is that rank's client, as `own_client` gives it."""
    corner = f"test {next(numbers)}"
    return lambda rank: PrefixStore(corner, clients(rank))
