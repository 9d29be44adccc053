"""A client of the store that nobody else waits on."""

from __future__ import annotations

import time

from megatron_nanguard.coordination.store import decide_once, own_client, wait_for
from tests.unit.coordination.conftest import Clients
from tests.unit.coordination.ranks import together


def test_waiting_ends_with_the_key_or_with_the_time(store: Clients) -> None:
    waiting, setting = store(0), store(1)
    assert not wait_for(waiting, "key", 0.1)

    def set_it() -> bool:
        setting.set("key", "1")
        return True

    began = time.monotonic()
    assert together({0: lambda: wait_for(waiting, "key", 20.0), 1: set_it}, {1: 0.2}) == {0: True, 1: True}
    assert time.monotonic() - began < 10.0


def test_the_first_to_decide_decides_for_all(store: Clients) -> None:
    deciders = {rank: store(rank) for rank in range(4)}
    said = together({rank: lambda rank=rank: decide_once(deciders[rank], "voters", f"by {rank}") for rank in deciders})
    assert len(set(said.values())) == 1
    assert decide_once(store(0), "voters", "too late") == said[0]


def test_an_own_client_shares_the_keys_and_not_the_connection(world_of_one: None) -> None:
    import torch.distributed as dist

    first, second = own_client("nanguard/x"), own_client("nanguard/x")
    first.set("key", "value")
    assert second.get("key") == b"value"
    assert not own_client("nanguard/y").check(["key"])
    default = dist.distributed_c10d._get_default_store()
    # One that waits does not keep the others from writing, as it would on a shared connection.
    assert together(
        {0: lambda: wait_for(first, "late", 20.0), 1: lambda: default.set("nanguard/x/late", "1") is None}, {1: 0.2}
    ) == {0: True, 1: True}
