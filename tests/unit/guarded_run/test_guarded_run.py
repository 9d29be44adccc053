"""What a rank knows of its guarded run: the policy that all ranks share, who speaks, where incidents are written."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from megatron_nanguard.guarded_run import guarded_run, run_handshake
from megatron_nanguard.guarded_run.guarded_run import GuardedRun
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from megatron_nanguard.megatron_api import host_program
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.settings import Settings
from tests.unit.conftest import Log

numbers = itertools.count(1)
Make = Callable[..., GuardedRun]


@pytest.fixture
def make(world_of_one: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    """Runs of one rank, each with a handshake of its own."""
    store = dist.distributed_c10d._get_default_store()
    monkeypatch.setattr(run_handshake, "own_client", lambda prefix: PrefixStore(prefix, store))

    def make(**changes: Any) -> GuardedRun:
        return GuardedRun(
            Settings(on=True, deadline=1.0, dir=str(tmp_path), **changes),
            RunHandshake((0,), next(numbers)),
            Shield(),
            Counter(),
            [],
        )

    return make


@pytest.mark.parametrize(
    ("asked", "tolerates", "policy"),
    [("skip", True, "skip"), ("skip", False, "abort"), ("continue", False, "continue"), ("abort", False, "abort")],
)
def test_a_trainer_that_takes_a_skip_for_fatal_is_never_skipped(
    make: Make, monkeypatch: pytest.MonkeyPatch, asked: str, tolerates: bool, policy: str
) -> None:
    monkeypatch.setattr(host_program, "trainer_tolerates_skips", lambda: tolerates)
    assert make(on_nonfinite=asked).policy == policy


def test_what_is_missing_is_noted_and_only_an_essential_part_keeps_the_run_unguarded(make: Make, log: Log) -> None:
    one = make()
    assert one.agree({"norm": "no norm"})
    assert one.notes == log.messages == ["no norm (patch group 'norm')"]
    other = make()
    assert not other.agree({"decision": "no decision", "step": "no step"})
    assert other.notes == ["all ranks run unguarded: no step; no decision"]


def test_with_strict_what_is_missing_ends_the_run(make: Make) -> None:
    with pytest.raises(SystemExit, match=r"--nanguard-strict: no norm \(patch group 'norm'\)"):
        make(strict=True).agree({"norm": "no norm"})


def test_a_rank_whose_start_failed_writes_its_incidents_beside_the_others(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("broken")

    whole, half = make(), make()
    whole.agree({})
    half.run_id = whole.run_id
    whole.start()
    monkeypatch.setattr(guarded_run, "RunFiles", broken)
    with pytest.raises(RuntimeError):
        half.start()
    assert half.files is None
    assert half.directory.path == whole.directory.path
