"""Ranks wait for each other in a real store, and learn which rank is missing."""

from __future__ import annotations

from functools import partial

import pytest

from megatron_nanguard.screening.store_barrier import RanksMissing, StoreBarrier
from tests.unit.coordination.conftest import Clients
from tests.unit.coordination.ranks import together


def test_all_ranks_pass_the_barrier(store: Clients) -> None:
    barriers = {rank: StoreBarrier(store(rank), rank, 3) for rank in range(3)}
    assert together({rank: partial(each.wait, "links", 20.0) for rank, each in barriers.items()}) == dict.fromkeys(
        range(3)
    )


def test_ranks_at_the_barrier_learn_which_rank_is_missing_and_its_activity(store: Clients) -> None:
    barriers = {rank: StoreBarrier(store(rank), rank, 3) for rank in range(3)}
    barriers[1].set_activity("devices, memory")

    def come(rank: int) -> dict[int, str]:
        with pytest.raises(RanksMissing) as missing:
            barriers[rank].wait("devices", 0.3)
        return missing.value.at

    late = {1: "devices, memory"}
    assert together({0: partial(come, 0), 2: partial(come, 2)}) == {0: late, 2: late}
    # The late one comes in the end, and learns it too.
    assert come(1) == late


def test_a_mark_is_seen_by_all(store: Clients) -> None:
    first, second = StoreBarrier(store(0), 0, 2), StoreBarrier(store(1), 1, 2)
    assert not second.is_marked("(0, 1)")
    first.mark("(0, 1)")
    assert second.is_marked("(0, 1)")
    assert not second.is_marked("(2, 3)")


def test_results_come_by_rank_and_those_of_lost_ranks_are_not_waited_for_long(store: Clients) -> None:
    barriers = [StoreBarrier(store(rank), rank, 3) for rank in range(3)]
    barriers[2].store_result("two")
    barriers[0].store_result("zero")
    assert barriers[0].results(2, 20.0) == (b"zero", b"two")
    assert barriers[0].results(3, 0.1) == (b"zero", b"two")


def test_without_an_exit_code_it_is_1(store: Clients) -> None:
    first, second = StoreBarrier(store(0), 0, 2), StoreBarrier(store(1), 1, 2)
    assert second.exit_code(0.1) == 1
    first.set_exit_code(0)
    assert second.exit_code(0.1) == 0
