"""Ranks of one real store agree, or learn together who is odd."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

import pytest

from megatron_nanguard.coordination.handshake import Agreement, Declaration, Handshake
from megatron_nanguard.coordination.store import wait_for
from tests.unit.coordination.conftest import Clients
from tests.unit.coordination.ranks import together

RANKS = (0, 1, 2, 3)
MINE = Declaration(on=True, version="0.1.0", options="a1b2")
OFF = Declaration(on=False, version="0.1.0", options="")
PATIENT = 20.0


def meet(
    store: Clients,
    declared: Mapping[int, Declaration | None],
    *,
    seconds: float | Mapping[int, float] = PATIENT,
    delays: Mapping[int, float] | None = None,
) -> dict[int, Agreement]:
    """Let every rank declare; None stays away, and one that is off stands aside without waiting."""

    def work(rank: int, mine: Declaration) -> Agreement | None:
        handshake = Handshake(store(rank), RANKS, rank)
        if not mine.on:
            handshake.stand_aside(mine)
            return None
        patience = seconds[rank] if isinstance(seconds, Mapping) else seconds
        return handshake.agree(mine, f"run-of-{rank}", patience)

    present = {rank: partial(work, rank, mine) for rank, mine in declared.items() if mine is not None}
    return {rank: agreed for rank, agreed in together(present, delays).items() if agreed is not None}


def reason_of(agreements: Mapping[int, Agreement]) -> str:
    """The one reason all ranks were given."""
    (one,) = set(agreements.values())
    return one.reason


def test_equal_ranks_start_with_one_name_and_one_speaker(store: Clients) -> None:
    agreements = meet(store, dict.fromkeys(RANKS, MINE))
    assert reason_of(agreements) == ""
    assert set(agreements) == set(RANKS)
    assert not agreements[0].reason
    assert agreements[0].speaker == 0
    assert agreements[0].run_id in {f"run-of-{rank}" for rank in RANKS}


def test_a_rank_without_the_flag_is_named_at_once(store: Clients) -> None:
    began = time.monotonic()
    agreements = meet(store, {**dict.fromkeys(RANKS, MINE), 3: OFF})
    assert reason_of(agreements) == "rank 3 started without --nanguard"
    assert time.monotonic() - began < PATIENT / 2


def test_a_rank_without_the_flag_that_comes_last_writes_the_agreement(store: Clients) -> None:
    agreements = meet(store, {**dict.fromkeys(RANKS, MINE), 2: OFF}, delays={2: 0.5})
    assert reason_of(agreements) == "rank 2 started without --nanguard"
    assert set(agreements) == {0, 1, 3}


def test_the_speaker_is_no_odd_rank(store: Clients) -> None:
    agreements = meet(store, {**dict.fromkeys(RANKS, MINE), 0: OFF})
    assert reason_of(agreements) == "rank 0 started without --nanguard"
    assert agreements[1].speaker == 1


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (Declaration(True, "0.2.0", "a1b2"), "rank 1 came with version 0.2.0, the others 0.1.0"),
        (Declaration(True, "0.1.0", "ffff"), "rank 1 got other options"),
        (Declaration(True, "0.1.0", "a1b2", "decision"), "rank 1 came without patch groups decision"),
    ],
)
def test_a_rank_that_differs_is_named_with_the_difference(store: Clients, odd: Declaration, reason: str) -> None:
    assert reason_of(meet(store, {**dict.fromkeys(RANKS, MINE), 1: odd})) == reason


def test_several_differences_are_one_sentence(store: Clients) -> None:
    declared = {0: MINE, 1: OFF, 2: MINE, 3: Declaration(True, "0.1.0", "ffff")}
    reason = reason_of(meet(store, declared))
    assert sorted(reason.split("; ")) == ["rank 1 started without --nanguard", "rank 3 got other options"]


def test_a_missing_rank_is_named_to_all_at_the_deadline(store: Clients) -> None:
    agreements = meet(store, {**dict.fromkeys(RANKS, MINE), 1: None}, seconds=0.5)
    assert reason_of(agreements) == "rank 1 did not answer"
    assert set(agreements) == {0, 2, 3}


def test_a_missing_and_an_odd_rank_are_both_named(store: Clients) -> None:
    agreements = meet(store, {0: MINE, 1: None, 2: None, 3: OFF}, seconds=0.5)
    assert reason_of(agreements) == "ranks 1, 2 did not answer; rank 3 started without --nanguard"


def test_a_rank_that_comes_after_the_deadline_reads_the_agreement_of_the_others(store: Clients) -> None:
    agreements = meet(store, dict.fromkeys(RANKS, MINE), seconds=0.3, delays={2: 1.0})
    assert reason_of(agreements) == "rank 2 did not answer"
    assert set(agreements) == set(RANKS)


@pytest.mark.parametrize("attempt", range(5))
def test_an_arrival_at_the_very_deadline_gives_one_agreement(store: Clients, attempt: int) -> None:
    agreements = meet(store, dict.fromkeys(RANKS, MINE), seconds=0.2, delays={3: 0.2})
    assert reason_of(agreements) in ("", "rank 3 did not answer", "the handshake took longer than 0.2 s")


def test_the_impatient_rank_decides_for_the_patient_ones(store: Clients) -> None:
    began = time.monotonic()
    agreements = meet(store, {**dict.fromkeys(RANKS, MINE), 3: None}, seconds={0: 0.3, 1: PATIENT, 2: PATIENT})
    assert reason_of(agreements) == "rank 3 did not answer"
    assert time.monotonic() - began < PATIENT / 2


def test_ranks_without_the_flag_do_not_wait(store: Clients) -> None:
    assert meet(store, dict.fromkeys(RANKS, OFF)) == {}
    assert wait_for(store(0), "verdict", 0.1)


def test_many_odd_ranks_are_counted_after_eight(store: Clients) -> None:
    world = tuple(range(12))
    handshakes = [Handshake(store(rank), world, rank) for rank in world]
    for handshake in handshakes[2:]:
        handshake.stand_aside(OFF)
    agreements = together({rank: partial(handshakes[rank].agree, MINE, "run", PATIENT) for rank in (0, 1)})
    assert reason_of(agreements) == "ranks 2, 3, 4, 5, 6, 7, 8, 9 and 2 more started without --nanguard"
