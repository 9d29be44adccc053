"""Bad devices and missing ranks, and the order of outliers."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.records.machine.screening import Outlier
from megatron_nanguard.screening.outliers import find_outliers
from tests.unit.screening.results import MATMUL, call, message, rank, rank_name

BAD = replace(MATMUL, result="wrong", words="wrong in 3 of 3 calls")


def test_no_results_and_right_results_give_no_outlier() -> None:
    assert find_outliers([], {}, rank_name) == ()
    assert find_outliers([rank(0), rank(1)], {}, rank_name) == ()


def test_a_device_with_wrong_values_is_named_with_its_check() -> None:
    assert find_outliers([rank(0), rank(1, devices=(BAD,)), rank(2)], {}, rank_name) == (
        Outlier("device", (1,), "rank 1 computes wrongly", ("matmul, bfloat16: wrong in 3 of 3 calls",)),
    )


def test_a_check_that_every_device_fails_names_them_as_a_group() -> None:
    (found,) = find_outliers([rank(0, devices=(BAD,)), rank(1, devices=(BAD, MATMUL))], {}, rank_name)
    assert (found.kind, found.ranks) == ("group", (0, 1))
    assert found.words == "every device fails at matmul, bfloat16: a library or a driver rather than one device"


def test_a_bad_device_is_named_when_it_is_the_only_one() -> None:
    (found,) = find_outliers([rank(0, devices=(BAD,))], {}, rank_name)
    assert (found.kind, found.ranks) == ("device", (0,))


def test_a_missing_rank_is_named_with_its_last_activity() -> None:
    assert find_outliers([rank(0)], {1: "devices, memory"}, rank_name) == (
        Outlier("rank", (1,), "rank 1 did not come back", ("from devices, memory",)),
    )


def test_a_bad_device_explains_its_collectives_but_not_a_bad_link() -> None:
    seen = [
        rank(0, collectives=(call((0, 1), "wrong"),)),
        rank(1, devices=(BAD,)),
        rank(2, transfers=tuple(message(2, 3, "wrong"))),
        rank(3),
    ]
    assert [(each.kind, each.ranks) for each in find_outliers(seen, {}, rank_name)] == [
        ("device", (1,)),
        ("link", (2, 3)),
    ]
