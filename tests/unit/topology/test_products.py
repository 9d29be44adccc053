from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import combinations, product
from time import perf_counter

import pytest

from megatron_nanguard.topology.products import Point, Product, cover

SEEDS = range(25)


def union(boxes: Iterable[Product]) -> set[Point]:
    return {point for box in boxes for point in product(*box)}


def grid(shape: tuple[int, ...]) -> list[Point]:
    return list(product(*map(range, shape)))


def fewest(points: set[Point], shape: tuple[int, ...]) -> int:
    """Size of a smallest cover: every product of the grid that fits is tried, in every combination."""
    sides = [[set(side) for size in range(1, n + 1) for side in combinations(range(n), size)] for n in shape]
    inside = [box for box in (frozenset(product(*choice)) for choice in product(*sides)) if box <= points]
    largest = [box for box in inside if not any(box < other for other in inside)]
    for number in range(1, len(points) + 1):
        if any(frozenset().union(*chosen) == points for chosen in combinations(largest, number)):
            return number
    raise AssertionError("single points always do")


@pytest.mark.parametrize("shape", [(2, 2, 2), (3, 3), (2, 2, 2, 2), (4, 2, 2)])
@pytest.mark.parametrize("seed", SEEDS)
def test_small_sets_are_covered_exactly_by_the_fewest(shape: tuple[int, ...], seed: int) -> None:
    chance = random.Random(seed)
    share = chance.choice([0.3, 0.5, 0.8])
    points = {point for point in grid(shape) if chance.random() < share} or {(0,) * len(shape)}
    boxes = cover(points)
    assert union(boxes) == points
    assert len(boxes) == fewest(points, shape)


@pytest.mark.parametrize("share", [0.002, 0.1, 0.5, 0.9])
def test_irregular_sets_of_a_large_world_are_covered_exactly(share: float) -> None:
    chance = random.Random(1)
    points = {point for point in grid((8, 8, 16, 16)) if chance.random() < share}
    assert union(cover(points)) == points


def test_a_large_world_takes_no_time() -> None:
    world = set(grid((8, 8, 16, 16)))
    started = perf_counter()
    assert len(cover(world)) == 1
    assert len(cover(world - {(1, 2, 3, 4)})) == 4
    assert len(cover({point for point in world if point[0] == 3 or point[3] < 4})) == 2
    # 0.1 s on an idle machine; the bound only catches a search that does not end.
    assert perf_counter() - started < 5


def test_a_product_of_scattered_values_is_one() -> None:
    points = set(product((0, 3, 5), (1, 7), (2,)))
    assert cover(points) == [(frozenset({0, 3, 5}), frozenset({1, 7}), frozenset({2}))]


def test_products_may_overlap() -> None:
    # A cross: one row and one column.
    points = {(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)}
    assert cover(points) == [
        (frozenset({0}), frozenset({0, 1, 2})),
        (frozenset({0, 1, 2}), frozenset({0})),
    ]


def test_the_point_of_a_world_without_axes() -> None:
    assert cover({()}) == [()]
