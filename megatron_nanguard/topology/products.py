"""Cover a set of grid points by the fewest products of index sets.

Index values with equal slices are merged first, so the grid is small even in a large world. On it an exact search runs
up to a budget. Beyond the budget the set is split axis by axis: the cover is exact, but may not be the smallest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import compress, permutations, product
from math import prod

Point = tuple[int, ...]
Product = tuple[frozenset[int], ...]
"""One set of index values per axis; its points are all combinations."""

_SEARCH_BUDGET = 20_000
"""Products examined before the search is given up for the split: a few tenths of a second."""
_SEARCH_POINTS = 300
"""Most points for which the search is tried: four axes with four different values each have 256."""
_ALL_ORDERS_POINTS = 1_000
"""Most points for which the split tries every order of the axes, not one order per first axis."""


class _TooIrregularError(Exception):
    """The set is too large for the exact search, or its budget is spent."""


def cover(points: Collection[Point]) -> list[Product]:
    """Return the fewest products whose union is exactly the given points; they may overlap.

    Args:
        points: grid points, all with the same number of axes (perhaps none); at least one.
    Returns:
        Products in a fixed order. Their number is minimal unless the set is too irregular to search.
    """
    small, classes = _merge_equal(frozenset(points))
    if small == {()}:
        return [()]
    try:
        boxes = _Search(small).smallest()
    except _TooIrregularError:
        boxes = _split(small)
    whole = [tuple(_expand(values, merged) for values, merged in zip(box, classes, strict=True)) for box in boxes]
    return sorted(whole, key=lambda box: [sorted(values) for values in box])


def _merge_equal(points: frozenset[Point]) -> tuple[frozenset[Point], list[dict[int, frozenset[int]]]]:
    """Return the points of the smaller grid, and per axis which values each remaining value represents."""
    classes: list[dict[int, frozenset[int]]] = []
    for axis in range(len(next(iter(points)))):
        merged = {min(values): values for values in _by_slice(points, axis).values()}
        points = frozenset(point for point in points if point[axis] in merged)
        classes.append(merged)
    return points, classes


def _by_slice(points: frozenset[Point], axis: int) -> dict[frozenset[Point], frozenset[int]]:
    """Return the values of one axis, grouped by their slice: the points with that value, without that axis."""
    slices: dict[int, list[Point]] = {}
    for point in points:
        slices.setdefault(point[axis], []).append((*point[:axis], *point[axis + 1 :]))
    grouped: dict[frozenset[Point], set[int]] = {}
    for value, rest in slices.items():
        grouped.setdefault(frozenset(rest), set()).add(value)
    return {rest: frozenset(values) for rest, values in grouped.items()}


def _expand(values: frozenset[int], merged: dict[int, frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*(merged[value] for value in values))


class _Search:
    """The search for a smallest cover, with its budget."""

    def __init__(self, points: frozenset[Point]) -> None:
        if len(points) > _SEARCH_POINTS:
            raise _TooIrregularError
        self._points = points
        self._budget = _SEARCH_BUDGET
        self._known: dict[Point, list[Product]] = {}
        axis_values = [frozenset(values) for values in zip(*points, strict=True)]
        self._reach = {point: [self._values(point, *axis) for axis in enumerate(axis_values)] for point in points}

    def _values(self, point: Point, axis: int, values: frozenset[int]) -> frozenset[int]:
        """Return the values of one axis that keep the point inside the set."""
        return frozenset(value for value in values if (*point[:axis], value, *point[axis + 1 :]) in self._points)

    def smallest(self) -> list[Product]:
        """Return a smallest cover: try one product, then two, and so on.

        Raises:
            _TooIrregularError: the budget is spent.
        """
        for number in range(len(self._points) + 1):
            found = self._extend(self._points, [], number)
            if found is not None:
                return found
        raise AssertionError("the single points cover every set")

    def _extend(self, left: frozenset[Point], chosen: list[Product], room: int) -> list[Product] | None:
        """Return a cover of what is left with at most `room` further products, or None."""
        if not left:
            return chosen
        if room == 0:
            return None
        # One of the products around any point left has to be chosen; around a lonely point there are the fewest.
        loneliest = min(left, key=lambda point: (sum(map(len, self._reach[point])), point))
        for box in self._around(loneliest):
            self._spend()
            found = self._extend(left.difference(product(*box)), [*chosen, box], room - 1)
            if found is not None:
                return found
        return None

    def _around(self, point: Point) -> list[Product]:
        """Return the largest products inside the set that contain a point, larger ones first."""
        if point not in self._known:
            boxes = set(self._grown(point))
            largest = [box for box in boxes if not any(_is_inside(box, other) for other in boxes if other != box)]
            largest.sort(key=lambda box: (-prod(map(len, box)), [sorted(values) for values in box]))
            self._known[point] = largest
        return self._known[point]

    def _grown(self, point: Point) -> Iterator[Product]:
        """Yield products that contain a point and lie in the set.

        On the axis with most indices each product reaches as far as it can; on the others every choice is tried.
        """
        reach = self._reach[point]
        longest = max(range(len(point)), key=lambda axis: len(reach[axis]))
        choices = [
            [frozenset({point[axis]})] if axis == longest else _subsets_with(point[axis], reach[axis])
            for axis in range(len(point))
        ]
        for sides in product(*choices):
            self._spend()
            if self._points.issuperset(product(*sides)):
                yield (*sides[:longest], self._as_far_as_it_goes(sides, longest, reach), *sides[longest + 1 :])

    def _as_far_as_it_goes(self, sides: Product, axis: int, reach: list[frozenset[int]]) -> frozenset[int]:
        return frozenset(
            value
            for value in reach[axis]
            if self._points.issuperset(product(*sides[:axis], (value,), *sides[axis + 1 :]))
        )

    def _spend(self) -> None:
        self._budget -= 1
        if self._budget < 0:
            raise _TooIrregularError


def _subsets_with(value: int, values: frozenset[int]) -> Iterator[frozenset[int]]:
    others = sorted(values - {value})
    for picks in product((False, True), repeat=len(others)):
        yield frozenset({value, *compress(others, picks)})


def _is_inside(box: Product, other: Product) -> bool:
    return all(values <= more for values, more in zip(box, other, strict=True))


def _split(points: frozenset[Point]) -> list[Product]:
    """Return products that do not overlap: split by one axis after the other, in the order that gives the fewest."""
    axes = range(len(next(iter(points))))
    orders = list(permutations(axes))
    if len(points) > _ALL_ORDERS_POINTS:
        orders = [(*axes[first:], *axes[:first]) for first in axes]
    return min((_split_in_order(points, order) for order in orders), key=len)


def _split_in_order(points: frozenset[Point], order: Sequence[int]) -> list[Product]:
    turned = frozenset(tuple(point[axis] for axis in order) for point in points)
    back = [order.index(axis) for axis in range(len(order))]
    return [tuple(box[place] for place in back) for box in _split_by_first(turned)]


def _split_by_first(points: frozenset[Point]) -> list[Product]:
    if points == {()}:
        return [()]
    return [(values, *box) for rest, values in _by_slice(points, 0).items() for box in _split_by_first(rest)]
