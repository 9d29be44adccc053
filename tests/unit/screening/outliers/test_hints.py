"""Hints about slow operations and odd bits, which are no outliers."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.screening.outliers.hints import hints, slow_ones
from tests.unit.screening.results import MATMUL, call, message, rank


def test_no_results_and_equal_results_give_no_hint() -> None:
    assert hints([]) == ()
    assert hints([rank(number) for number in range(8)]) == ()


def test_far_above_the_median_is_slow() -> None:
    # Median 1.0 ms, deviations 0 0 0 0.1 0.1 and the outlier's: their median is 0.05, the limit three medians.
    seconds = {"rank 0": 1e-3, "rank 1": 1e-3, "rank 2": 1e-3, "rank 3": 1.1e-3, "rank 4": 0.9e-3, "rank 5": 3.1e-3}
    assert slow_ones("sum", seconds) == ["slow: rank 5, sum: 3.1 ms, the median of 6 is 1.0 ms"]
    assert slow_ones("sum", {**seconds, "rank 5": 2.9e-3}) == []


def test_where_all_times_scatter_none_is_slow() -> None:
    # Median 3, deviations 2 2 1 0 5: their median 2, the limit 3 + 6 * 1.4826 * 2 = 20.8.
    assert slow_ones("sum", {"a": 1.0, "b": 1.0, "c": 4.0, "d": 3.0, "e": 8.0}) == []
    assert slow_ones("sum", {"a": 1.0, "b": 1.0, "c": 4.0, "d": 3.0, "e": 20.0}) == []
    assert len(slow_ones("sum", {"a": 1.0, "b": 1.0, "c": 4.0, "d": 3.0, "e": 21.0})) == 1


def test_few_measurements_give_no_hint() -> None:
    assert slow_ones("sum", {"a": 1.0, "b": 1.0, "c": 1.0, "d": 9.0}) == []


def test_a_device_with_other_bits_than_most_of_its_name_is_a_hint() -> None:
    odd = replace(MATMUL, digest="f" * 16)
    expected = ("other bits than on most devices of the name, within the bound: rank 1, matmul, bfloat16",)
    assert hints([rank(0), rank(1, devices=(odd,)), rank(2)]) == expected
    assert hints([rank(0), rank(1, devices=(odd,), device="Other card"), rank(2)]) == ()
    assert hints([rank(0), rank(1, devices=(odd,))]) == ()


def test_links_and_groups_are_compared_with_others_of_their_kind() -> None:
    def seen(number: int, seconds: float) -> list[str]:
        ends = [replace(end, seconds=seconds) for end in message(number, number + 1)]
        group = (2 * number, 2 * number + 1)
        return rank(number, transfers=tuple(ends), collectives=(call(group, seconds=seconds),))  # type: ignore[return-value]

    ranks = [seen(number, 1e-3) for number in range(5)] + [seen(5, 9e-3)]
    assert hints(ranks) == (  # type: ignore[arg-type]
        "slow: link 5 to 6, transfer: 9.0 ms, the median of 6 is 1.0 ms",
        "slow: dp group of ranks 10, 11, all_gather, dp: 9.0 ms, the median of 6 is 1.0 ms",
    )
