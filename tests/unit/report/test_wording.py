"""Numbers and sets of ranks read alike everywhere."""

from __future__ import annotations

import math

import pytest

from megatron_nanguard.report.wording import count, number, rank_list


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (math.nan, "nan"), (-math.inf, "-inf"), (0.0, "0"), (1234567.0, "1.23457e+06"), (10.25, "10.25")],
)
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_count_of_nothing_is_not_an_unknown_count() -> None:
    assert (count(0), count(None)) == ("0", "-")


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
def test_ranks_are_told_in_runs(ranks: tuple[int, ...], text: str) -> None:
    assert rank_list(ranks) == text


def test_a_list_that_holds_only_the_first_ranks_gives_the_number_of_all() -> None:
    assert rank_list((0, 1, 2), 100) == "0-2, ... (100 ranks)"
