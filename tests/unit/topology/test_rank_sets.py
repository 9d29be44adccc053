from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import chain

import pytest

from megatron_nanguard.records.coordinates import ParallelSizes, RankGroup
from megatron_nanguard.topology.rank_sets import describe
from tests.unit.topology.grids import everyone, layout

A = layout(tp=2, pp=2, dp=2)
F = layout(pp=2, dp=4, ep=2)
LARGE = layout(tp=8, cp=2, dp=64, pp=16)


def words(ranks: Collection[int], sizes: ParallelSizes) -> list[str]:
    return [group.words for group in describe(ranks, everyone(sizes), sizes)]


@pytest.mark.parametrize(
    ("ranks", "sizes", "expected"),
    [
        ({0, 1, 4, 5}, A, ["data-parallel replica 0 (all tensor-parallel ranks, all pipeline stages)"]),
        ({1, 3, 5, 7}, A, ["TP index 1 everywhere"]),
        ({4, 5, 6, 7}, A, ["pipeline stage 1 (all tensor-parallel ranks, all data-parallel replicas)"]),
        ({6, 7}, A, ["data-parallel replica 1, pipeline stage 1 (all tensor-parallel ranks)"]),
        ({5, 7}, A, ["TP index 1, pipeline stage 1 (all data-parallel replicas)"]),
        ({5}, A, ["rank 5 (TP 1, PP 1, DP 0)"]),
        (range(8), A, ["all ranks"]),
        ((), A, []),
        ({0}, layout(), ["rank 0"]),
        ({0, 2, 3}, layout(dp=5), ["data-parallel replicas 0, 2-3"]),
        ({0, 1}, layout(dp=2), ["all ranks"]),
        ({3, 7}, layout(tp=4, dp=2), ["TP index 3 everywhere"]),
        ({2, 3}, layout(cp=2, dp=2), ["data-parallel replica 1 (all context-parallel ranks)"]),
        ({1, 3}, layout(cp=2, dp=2), ["CP index 1 everywhere"]),
        ({1, 2}, layout(tp=2, dp=2), ["rank 2 (TP 0, DP 1)", "rank 1 (TP 1, DP 0)"]),
    ],
)
def test_a_set_in_words(ranks: Collection[int], sizes: ParallelSizes, expected: list[str]) -> None:
    assert words(ranks, sizes) == expected


def test_the_record_in_full() -> None:
    (group,) = describe({0, 1, 4, 5}, everyone(A), A)
    assert group == RankGroup(
        axis="dp",
        indices={"dp": (0,)},
        words="data-parallel replica 0 (all tensor-parallel ranks, all pipeline stages)",
        ranks=(0, 1, 4, 5),
    )


def test_a_set_that_is_no_product_is_the_fewest_products() -> None:
    # Replica 0, and TP index 1 of replica 1 as well: the two overlap in ranks 1 and 5.
    groups = describe({0, 1, 3, 4, 5, 7}, everyone(A), A)
    assert [group.words for group in groups] == [
        "data-parallel replica 0 (all tensor-parallel ranks, all pipeline stages)",
        "TP index 1 everywhere",
    ]
    assert set(chain.from_iterable(group.ranks for group in groups)) == {0, 1, 3, 4, 5, 7}


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        # Odd replicas hold the second half of the experts; as replicas they would be "1, 3". Replicas 2 and 3 share
        # one set of experts.
        ({1, 3, 5, 7}, ["EP index 1 everywhere"]),
        ({0, 4}, ["data-parallel replica 0 (all pipeline stages)"]),
        ({5, 7}, ["EP index 1, pipeline stage 1 (all expert replicas)"]),
        ({2, 3, 6, 7}, ["expert replica 1 (all expert-parallel ranks, all pipeline stages)"]),
        ({6}, ["rank 6 (EP 0, PP 1, DP 2)"]),
    ],
)
def test_experts_are_read_in_the_way_that_says_least(ranks: Collection[int], expected: list[str]) -> None:
    assert words(ranks, F) == expected


def test_experts_folded_out_of_context_parallelism_too() -> None:
    # CP2 DP2 EP4: each expert rank is one (cp, dp); only the dense axes name replica 1 at once.
    assert words({2, 3}, layout(cp=2, dp=2, ep=4)) == ["data-parallel replica 1 (all context-parallel ranks)"]


def test_a_large_world() -> None:
    faulty = [rank for rank, at in everyone(LARGE).items() if at.dp == 17 or at.tp == 3]
    assert words(faulty, LARGE) == [
        "data-parallel replica 17 (all tensor-parallel ranks, all context-parallel ranks, all pipeline stages)",
        "TP index 3 everywhere",
    ]


def test_ranks_without_a_place_of_their_own_are_listed() -> None:
    # Two models trained side by side, each with its own axes: four ranks stand at every place.
    sizes = replace(layout(tp=2), world=4)
    places = everyone(layout(tp=2))
    twice = {rank: replace(places[rank % 2], rank=rank) for rank in range(4)}
    assert describe({1, 2, 3}, twice, sizes) == (RankGroup("rank", {"rank": (1, 2, 3)}, "ranks 1-3", (1, 2, 3)),)
