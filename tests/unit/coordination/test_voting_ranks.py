"""Who votes on an optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch._C._distributed_c10d import PrefixStore

from megatron_nanguard.coordination import voting_ranks as module
from megatron_nanguard.coordination.voting_ranks import VotingRanks
from tests.unit.coordination.conftest import Clients
from tests.unit.coordination.ranks import together


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """A world of four without processes: the groups that would have been made are listed."""
    made: list[tuple[int, ...]] = []
    monkeypatch.setattr(module.dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(module, "_group_of", lambda ranks: made.append(ranks))
    yield made


def ranks_of(store: Clients, built: tuple[int, ...], ranks: tuple[int, ...] = (0, 1, 2, 3)) -> dict[int, VotingRanks]:
    """The voting ranks as each rank sees them; some have built the optimizer."""
    found = {rank: VotingRanks(PrefixStore("optimizer/1", store(rank)), ranks, rank) for rank in ranks}
    for rank in built:
        found[rank].register()
    return found


def test_when_all_have_built_it_the_whole_world_votes_on_the_default_group(store: Clients, groups: list[Any]) -> None:
    found = ranks_of(store, built=(0, 1, 2, 3))
    voters = together({rank: one.voters for rank, one in found.items()})
    assert {one.ranks for one in voters.values() if one} == {(0, 1, 2, 3)}
    assert {one.group for one in voters.values() if one} == {None}
    assert groups == []


def test_only_those_that_have_built_it_vote_on_a_group_of_their_own(store: Clients, groups: list[Any]) -> None:
    found = ranks_of(store, built=(0, 2, 3))
    voters = together({rank: one.voters for rank, one in found.items()})
    assert voters[1] is None
    assert [one.ranks for rank, one in voters.items() if one] == [(0, 2, 3)] * 3
    assert groups == [(0, 2, 3)] * 3


def test_a_rank_that_builds_it_after_the_first_decision_is_no_voter(store: Clients, groups: list[Any]) -> None:
    found = ranks_of(store, built=(0, 1))
    first = found[0].voters()
    found[3].register()
    assert first is not None
    assert first.ranks == (0, 1)
    assert found[3].voters() is None
    late = found[1].voters()
    assert late is not None
    assert late.ranks == (0, 1)


def test_a_smaller_parallel_world_has_a_group_even_if_all_of_it_votes(store: Clients, groups: list[Any]) -> None:
    found = ranks_of(store, built=(2, 3), ranks=(2, 3))
    voters = found[2].voters()
    assert voters is not None
    assert voters.ranks == (2, 3)
    assert groups == [(2, 3)]


def test_asked_again_the_same_voters_answer_without_a_second_group(store: Clients, groups: list[Any]) -> None:
    found = ranks_of(store, built=(0, 1))
    assert found[0].voters() is found[0].voters()
    assert groups == [(0, 1)]


def test_two_optimizers_have_voters_of_their_own(store: Clients, groups: list[Any]) -> None:
    first = ranks_of(store, built=(0, 1, 2, 3))
    second = VotingRanks(PrefixStore("optimizer/2", store(3)), (0, 1, 2, 3), 3)
    second.register()
    voters, others = first[3].voters(), second.voters()
    assert voters is not None
    assert others is not None
    assert (voters.ranks, others.ranks) == ((0, 1, 2, 3), (3,))
