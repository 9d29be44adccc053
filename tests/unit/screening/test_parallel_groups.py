"""Groups and links of a layout, worked out by hand."""

from __future__ import annotations

import pytest

from megatron_nanguard.errors import SettingsError
from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.screening.parallel_groups import families, layout_of, links, pairs, rounds

EXPERTS = ParallelSizes(world=4, tp=2, cp=1, ep=4, dp=2, pp=1, expert_tp=1, expert_dp=1)


def sizes(world: int, **axes: int) -> ParallelSizes:
    return layout_of(world, **{"tp": 1, "pp": 1, "cp": 1, "ep": 1, "expert_tp": None, **axes})  # type: ignore[arg-type]


def groups(layout: ParallelSizes) -> dict[str, list[tuple[int, ...]]]:
    return {family[0].axis: [group.ranks for group in family] for family in families(layout)}


def test_the_remaining_ranks_are_data_parallel() -> None:
    expected = ParallelSizes(world=8, tp=2, cp=1, ep=1, dp=2, pp=2, expert_tp=2, expert_dp=2)
    assert sizes(8, tp=2, pp=2) == expected
    assert sizes(4, tp=2, ep=4, expert_tp=1) == EXPERTS


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"tp": 3}, "screen: --tp 3 x --cp 1 x --pp 1 is 3, which does not divide the 8 ranks of this job"),
        ({"tp": 2, "ep": 8}, "screen: --expert-tp 2 x --ep 8 x --pp 1 is 16, which does not divide the 8 ranks"),
    ],
)
def test_sizes_that_do_not_fit_the_job_are_refused(axes: dict[str, int], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        sizes(8, **axes)


def test_groups_of_a_dense_layout() -> None:
    assert groups(sizes(8, tp=2, pp=2)) == {
        "tp": [(0, 1), (2, 3), (4, 5), (6, 7)],
        "dp": [(0, 2), (1, 3), (4, 6), (5, 7)],
        "pp": [(0, 4), (1, 5), (2, 6), (3, 7)],
        "all": [(0, 1, 2, 3, 4, 5, 6, 7)],
    }


def test_expert_groups_are_listed_when_they_differ_from_the_dense_ones() -> None:
    assert groups(EXPERTS) == {"tp": [(0, 1), (2, 3)], "dp": [(0, 2), (1, 3)], "ep": [(0, 1, 2, 3)]}


def test_context_ranks_reduce_gradients_with_the_replicas() -> None:
    assert groups(sizes(8, tp=2, cp=2))["dp+cp"] == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_one_rank_has_neither_groups_nor_links() -> None:
    assert (families(sizes(1)), links(sizes(1))) == ((), ())


def test_links_are_the_neighbours_on_the_ring_of_each_group() -> None:
    assert links(sizes(4, pp=4)) == ((0, 1), (0, 3), (1, 2), (2, 3))
    assert links(sizes(4, tp=2)) == ((0, 1), (0, 2), (1, 3), (2, 3))


def test_pairs_are_those_of_every_group_once() -> None:
    assert pairs([(0, 1, 2), (1, 2)]) == ((0, 1), (0, 2), (1, 2))


def test_no_rank_occurs_twice_in_a_round() -> None:
    assert rounds(((0, 1), (0, 3), (1, 2), (2, 3))) == (((0, 1), (2, 3)), ((0, 3), (1, 2)))
    assert rounds(()) == ()
