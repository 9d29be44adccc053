"""A set of ranks reads alike everywhere."""

from __future__ import annotations

import pytest

from megatron_nanguard.records.rank_words import name_ranks, rank_list


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), "no rank"),
        ((7,), "rank 7"),
        ((4, 5), "ranks 4, 5"),
        (range(17), "17 ranks (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ...)"),
    ],
)
def test_a_sentence_spells_a_set_out_or_its_beginning(ranks: tuple[int, ...], text: str) -> None:
    assert name_ranks(ranks) == text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), "none"),
        ((7,), "7"),
        ((0, 1, 4, 5), "0, 1, 4, 5"),
        ((0, 1, 2, 5, 8, 9, 10), "0-2, 5, 8-10"),
        (tuple(range(16384)), "0-16383"),
        (tuple(range(0, 34, 2)), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, ... (17 ranks)"),
    ],
)
def test_a_table_shows_ranks_in_runs(ranks: tuple[int, ...], text: str) -> None:
    assert rank_list(ranks) == text


def test_a_list_that_holds_only_the_first_ranks_gives_the_number_of_all() -> None:
    assert rank_list((0, 1, 2), 100) == "0-2, ... (100 ranks)"
