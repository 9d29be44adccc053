"""Groups whose bad collectives no other outlier explains."""

from __future__ import annotations

import pytest

from megatron_nanguard.records.machine.screening import Outlier
from megatron_nanguard.screening.outliers.bad_groups import find_bad_groups
from tests.unit.screening.results import call, rank_name

GROUP = (0, 1, 2, 3)


def test_no_results_and_right_results_give_no_outlier() -> None:
    assert find_bad_groups({}, [], rank_name) == []
    right = {0: [call(GROUP), call(GROUP, "unsupported")], 1: [call(GROUP)]}
    assert find_bad_groups(right, [], rank_name) == []


def test_a_group_without_a_bad_member_or_link_is_named() -> None:
    (found,) = find_bad_groups({2: [call(GROUP, "wrong", operation="all_reduce")]}, [], rank_name)
    assert found == Outlier(
        "group",
        GROUP,
        "dp group of ranks 0, 1, 2, 3: all_reduce bad on rank 2; "
        "no member and no link of it that was tried alone is to blame",
        ("all_reduce on rank 2: wrong",),
    )


def test_a_member_whose_data_is_wrong_at_all_others_is_named() -> None:
    views = {rank: [call(GROUP, "wrong", wrong_from=(2,))] for rank in (0, 1, 3)}
    (found,) = find_bad_groups(views, [], rank_name)
    assert (found.kind, found.ranks) == ("rank", (2,))
    assert found.evidence[0] == "all_gather on rank 0: wrong, from rank 2"


def test_a_member_whose_data_is_wrong_at_one_other_is_not_named() -> None:
    (found,) = find_bad_groups({0: [call(GROUP, "wrong", wrong_from=(2,))]}, [], rank_name)
    assert found.kind == "group"


@pytest.mark.parametrize(
    ("kind", "ranks", "is_explained"),
    [("device", (2,), True), ("link", (1, 2), True), ("link", (2, 6), False), ("device", (6,), False)],
)
def test_an_outlier_explains_only_groups_of_which_it_is_a_member(
    kind: str, ranks: tuple[int, ...], is_explained: bool
) -> None:
    accused = [Outlier(kind, ranks, "", ())]  # type: ignore[arg-type]
    found = find_bad_groups({2: [call(GROUP, "wrong")]}, accused, rank_name)
    assert (found == []) is is_explained


def test_the_smallest_group_explains_larger_ones() -> None:
    views = {2: [call(GROUP, "wrong", axis="all"), call((2, 3), "late", axis="tp", words="no end after 3 s")]}
    (found,) = find_bad_groups(views, [], rank_name)
    assert found.ranks == (2, 3)
    assert found.evidence == ("all_gather on rank 2: late, no end after 3 s",)
