"""Clients of the rendezvous store that only the guard waits on."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

__all__ = ["Store", "decide_once", "host_client", "own_client", "wait_for", "within"]


def own_client(prefix: str) -> Store:
    """A connection of our own to the default store, under a prefix.

    A wait on the host's client would hold its lock. Where the store cannot be cloned (torch before 2.6, stores that a
    trainer has written itself), the host's client is used all the same.

    Source: torch/distributed/distributed_c10d.py, _get_default_store
    """
    store = dist.distributed_c10d._get_default_store()
    with contextlib.suppress(AttributeError, RuntimeError):
        store = store.clone()
    return PrefixStore(prefix, store)


def host_client(prefix: str) -> Store:
    """The host's own connection, under a prefix: for a rank that never waits, and needs no second connection."""
    return PrefixStore(prefix, dist.distributed_c10d._get_default_store())


def within(store: Store, prefix: str) -> Store:
    """The keys under one more prefix, on the same connection."""
    return PrefixStore(prefix, store)


def wait_for(store: Store, key: str, seconds: float) -> bool:
    """Wait until a key is set; False when the time is over. Blocks in the store, not in Python."""
    try:
        store.wait([key], timedelta(seconds=seconds))
    except RuntimeError:
        return bool(store.check([key]))
    return True


def decide_once(store: Store, key: str, value: str) -> str:
    """Set a key unless another rank has set it; returns its value, the same on every rank."""
    decided: bytes = store.compare_set(key, "", value)
    return decided.decode()
