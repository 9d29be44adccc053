"""Handshake, voting ranks and keys of one parallel world."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from megatron_nanguard.coordination.handshake import Declaration
from megatron_nanguard.guarded_run import run_handshake
from megatron_nanguard.guarded_run.run_handshake import RunHandshake
from megatron_nanguard.settings import Settings
from megatron_nanguard.version import __version__

ON = Settings(on=True, deadline=1.0)
numbers = itertools.count()


@pytest.fixture(autouse=True)
def corner(world_of_one: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has a corner of the store of its own."""
    store, here = dist.distributed_c10d._get_default_store(), f"test {next(numbers)}"
    monkeypatch.setattr(run_handshake, "own_client", lambda prefix: PrefixStore(f"{here}/{prefix}", store))
    yield


def test_a_world_of_one_agrees_with_itself() -> None:
    agreement = RunHandshake((0,), 1).agree(ON, [])
    assert (agreement.reason, agreement.speaker) == ("", 0)
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{4}", agreement.run_id)


def test_a_second_world_of_the_process_meets_by_itself() -> None:
    first, second = RunHandshake((0,), 1).agree(ON, []), RunHandshake((0,), 2).agree(ON, [])
    assert not first.reason
    assert not second.reason


def test_the_message_names_the_rank_that_is_off() -> None:
    off = RunHandshake((0, 1), 1)
    off.rank = 1
    off.declare_off()
    agreement = RunHandshake((0, 1), 1).agree(ON, [])
    assert (agreement.reason, agreement.speaker) == ("rank 1 started without --nanguard", 0)


def test_a_rank_that_is_off_opens_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(run_handshake, "own_client", opened.append)
    off = RunHandshake((0,), 1000, waits=False)
    off.declare_off()
    assert opened == []
    default = dist.distributed_c10d._get_default_store()
    assert default.check(["nanguard/1000/0-0/handshake/rank/0"])


def test_ranks_that_lack_different_patch_groups_do_not_start() -> None:
    other = RunHandshake((0, 1), 1)
    other.rank = 1
    other._handshake().declare(declaration(["norm", "decision"]))
    agreement = RunHandshake((0, 1), 1).agree(ON, [])
    assert agreement.reason == "rank 1 came without patch groups decision, norm"


def declaration(declined: list[str]) -> Declaration:
    return Declaration(True, __version__, ON.digest(), ", ".join(sorted(declined)))


def test_optimizers_are_numbered_and_this_rank_is_a_voter_of_each() -> None:
    mine = RunHandshake((0,), 1)
    first, second = mine.voting_ranks(), mine.voting_ranks()
    for voting_ranks in (first, second):
        voters = voting_ranks.voters()
        assert voters is not None
        assert (voters.ranks, voters.group) == ((0,), None)
    assert mine.store("optimizer/2").check(["built/0"])
    assert not mine.store("optimizer/3").check(["built/0"])


def test_only_the_first_to_ask_is_first() -> None:
    mine = RunHandshake((0,), 1)
    assert [mine.is_first("start"), mine.is_first("start"), mine.is_first("other")] == [True, False, True]


def test_purposes_do_not_share_keys() -> None:
    mine = RunHandshake((0,), 1)
    mine.store("incident").set("failed", "1")
    assert not mine.store("drill").check(["failed"])
    assert RunHandshake((0,), 1).store("incident").check(["failed"])
