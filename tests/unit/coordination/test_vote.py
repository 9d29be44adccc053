"""The collectives, on a world of one; several ranks are in the multi-rank tests."""

from __future__ import annotations

import torch

from megatron_nanguard.coordination.vote import all_done, broadcast, exchange, vote
from megatron_nanguard.coordination.voting_ranks import Voters

CPU = torch.device("cpu")
ALONE = Voters((0,), None)


def test_a_vote_gives_the_flags_as_integers(world_of_one: None) -> None:
    assert vote(torch.tensor([1, 0, 2], dtype=torch.int32), ALONE) == [1, 0, 2]


def test_an_exchange_gives_one_row_per_voter(world_of_one: None) -> None:
    assert exchange([7, -1, 2**40], ALONE, CPU) == [[7, -1, 2**40]]


def test_one_that_is_not_done_is_enough(world_of_one: None) -> None:
    assert all_done(True, ALONE, CPU)
    assert not all_done(False, ALONE, CPU)


def test_bytes_of_one_rank_arrive_whole_whatever_their_length(world_of_one: None) -> None:
    for data in (b"", b"{}", bytes(range(256))):
        assert broadcast(data, 0, 256, ALONE, CPU) == data
