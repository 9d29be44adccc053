"""Devices and ranks that are gone; the order of what is named."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.records.screening import Outlier
from megatron_nanguard.screening.outliers import find_outliers
from tests.unit.screening.seen import MATMUL, call, message, rank, rank_name

BAD = replace(MATMUL, result="wrong", words="wrong in 3 of 3 calls")


def test_nothing_seen_and_everything_right_accuses_nobody() -> None:
    assert find_outliers([], {}, rank_name) == ()
    assert find_outliers([rank(0), rank(1)], {}, rank_name) == ()


def test_a_device_with_wrong_values_is_named_with_its_check() -> None:
    assert find_outliers([rank(0), rank(1, devices=(BAD,)), rank(2)], {}, rank_name) == (
        Outlier("device", (1,), "rank 1 computes wrongly", ("matmul, bfloat16: wrong in 3 of 3 calls",)),
    )


def test_what_every_device_fails_at_is_no_single_devices_fault() -> None:
    (found,) = find_outliers([rank(0, devices=(BAD,)), rank(1, devices=(BAD, MATMUL))], {}, rank_name)
    assert (found.kind, found.ranks) == ("group", (0, 1))
    assert found.words == "every device fails at matmul, bfloat16: a library or a driver rather than one device"


def test_one_device_alone_is_named_all_the_same() -> None:
    (found,) = find_outliers([rank(0, devices=(BAD,))], {}, rank_name)
    assert (found.kind, found.ranks) == ("device", (0,))


def test_a_rank_that_is_gone_is_named_with_where_it_was() -> None:
    assert find_outliers([rank(0)], {1: "devices, memory"}, rank_name) == (
        Outlier("rank", (1,), "rank 1 did not come back", ("from devices, memory",)),
    )


def test_a_bad_device_explains_its_collectives_and_a_bad_link_is_named_beside_it() -> None:
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
