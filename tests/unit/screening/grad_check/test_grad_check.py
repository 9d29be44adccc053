"""Gradients of all ranks, compared in one sentence."""

from __future__ import annotations

from megatron_nanguard.screening.grad_check import GradCheckResult, RankGradients, compare

FINITE = RankGradients([], {"loss": "a", "w": "b"})
OTHER = RankGradients([], {"loss": "a", "w": "c"})
BAD = RankGradients(["w: 1 NaN, 0 Inf of 6"], {"loss": "a", "w": "d"})


def test_equal_and_finite_gradients_are_clean() -> None:
    words = "clean: every gradient is finite, and the same bit for bit on ranks 0, 1"
    assert compare({0: FINITE, 1: FINITE}) == GradCheckResult(0, words)


def test_ranks_with_bad_gradients_are_named() -> None:
    assert compare({0: FINITE, 1: BAD, 2: FINITE}) == GradCheckResult(1, "rank 1 only: w: 1 NaN, 0 Inf of 6")
    assert compare({0: FINITE, 1: BAD, 2: BAD}).words == "ranks 1, 2 only: w: 1 NaN, 0 Inf of 6"
    assert compare({0: BAD, 1: BAD}) == GradCheckResult(1, "all ranks: w: 1 NaN, 0 Inf of 6")


def test_many_parameters_are_counted() -> None:
    many = RankGradients([f"w{number}: 1 NaN" for number in range(7)], {})
    assert compare({0: many}).words == "all ranks: w0: 1 NaN; w1: 1 NaN; w2: 1 NaN; w3: 1 NaN and 3 more"


def test_other_bits_than_the_majority_are_named() -> None:
    words = "rank 2 only: finite, but other bits than on 2 ranks in w"
    assert compare({0: FINITE, 1: FINITE, 2: OTHER}) == GradCheckResult(1, words)


def test_without_a_majority_no_rank_is_named() -> None:
    code, words, _ = compare({0: FINITE, 1: OTHER})
    assert code == 1
    assert words.startswith("undecided: every gradient is finite, but no majority of ranks has the same bits in w;")


def test_the_lowest_rank_that_came_back_reports() -> None:
    assert (GradCheckResult(0, "").reporter, GradCheckResult(1, "", (0, 1)).reporter) == (0, 2)
