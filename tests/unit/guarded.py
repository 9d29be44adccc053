"""A guarded process of one rank of real Megatron."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from megatron_nanguard.guard.guard import Guard
from megatron_nanguard.guard.hooks import Hooks
from megatron_nanguard.guarded_run import run_handshake
from megatron_nanguard.settings import Settings

numbers = itertools.count()


class Guarded:
    """A process in which the guard is installed and the parallel groups are made."""

    def __init__(self, settings: Settings) -> None:
        self.hooks = Hooks()
        self.guard: Guard = self.hooks.guard
        self.guard.options.settings = settings
        self.hooks.install()

    def meet(self) -> None:
        """The parallel groups of this rank's world exist; making them anew for every test would take long."""
        self.guard.groups_exist(0, None)

    def counts(self) -> tuple[int, int, int]:
        counts = self.guard.counts
        return counts["steps_guarded"], counts["alarms"], counts["incidents"]


Install = Callable[..., Guarded]
"""``install(...)``: settings that differ from a run with policy skip; ``meet=False`` stops before the handshake."""


def installing(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[Install]:
    """Hand out what installs guards, and take them all out again."""
    import megatron.training.training  # noqa: F401  a trainer that tolerates skips

    # A corner of the store for each test, on one connection.
    store, corner = dist.distributed_c10d._get_default_store(), f"test {next(numbers)}"
    monkeypatch.setattr(run_handshake, "own_client", lambda prefix: PrefixStore(f"{corner}/{prefix}", store))
    made: list[Guarded] = []

    def install(*, meet: bool = True, **changes: Any) -> Guarded:
        base = Settings(on=True, dir=str(directory), on_nonfinite="skip", deadline=20.0)
        found = Guarded(replace(base, **changes))
        made.append(found)
        if meet:
            found.meet()
        return found

    yield install
    for one in made:
        one.hooks.remove()
