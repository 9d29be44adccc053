"""Say in words which part of the parallel layout a set of ranks is.

{0, 1, 4, 5} of TP2 PP2 DP2    data-parallel replica 0 (all tensor-parallel ranks, all pipeline stages)
{1, 3, 5, 7} of TP2 PP2 DP2    TP index 1 everywhere
{5} of TP2 PP2 DP2             rank 5 (TP 1, PP 1, DP 0)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, product
from math import prod

from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes, RankGroup
from megatron_nanguard.records.phrase import LISTED, joined, phrase
from megatron_nanguard.topology.products import Product, cover

_ALL = {
    "tp": phrase("all tensor-parallel ranks"),
    "cp": phrase("all context-parallel ranks"),
    "ep": phrase("all expert-parallel ranks"),
    "dp": phrase("all data-parallel replicas"),
    "pp": phrase("all pipeline stages"),
    "expert_tp": phrase("all expert-tensor-parallel ranks"),
    "expert_dp": phrase("all expert replicas"),
}
"""Words for every index of an axis."""
_ONE = {
    "tp": phrase("TP index {index}"),
    "cp": phrase("CP index {index}"),
    "ep": phrase("EP index {index}"),
    "dp": phrase("data-parallel replica {index}"),
    "pp": phrase("pipeline stage {index}"),
    "expert_tp": phrase("expert TP index {index}"),
    "expert_dp": phrase("expert replica {index}"),
    "rank": phrase("rank {index}"),
}
_SEVERAL = {
    "tp": phrase("TP indices {indices}"),
    "cp": phrase("CP indices {indices}"),
    "ep": phrase("EP indices {indices}"),
    "dp": phrase("data-parallel replicas {indices}"),
    "pp": phrase("pipeline stages {indices}"),
    "expert_tp": phrase("expert TP indices {indices}"),
    "expert_dp": phrase("expert replicas {indices}"),
    "rank": phrase("ranks {indices}"),
}


def describe(
    ranks: Collection[int], coordinates: Mapping[int, Coordinates], sizes: ParallelSizes
) -> tuple[RankGroup, ...]:
    """Return a set of ranks as the fewest products of index sets that cover it exactly.

    Args:
        ranks: global ranks; none gives no group.
        coordinates: of every rank of the run (or every training rank), by global rank.
        sizes: the layout.
    """
    if not ranks:
        return ()
    readings = [_read(ranks, coordinates, sizes, axes) for axes in _readable(coordinates, sizes)]
    if not readings:
        listed = tuple(sorted(ranks))
        return (RankGroup("rank", {"rank": listed}, _index_of("rank", listed), listed),)
    return min(readings, key=_length)


def _length(groups: tuple[RankGroup, ...]) -> tuple[int, int, int]:
    """Return how much a reading says: products, then named axes, then index values."""
    sides = [values for group in groups for values in group.indices.values()]
    return len(groups), len(sides), sum(map(len, sides))


def _readable(coordinates: Mapping[int, Coordinates], sizes: ParallelSizes) -> list[tuple[str, ...]]:
    """Return the axis systems in which every rank has a place of its own; axes of size 1 are left out.

    EP is folded out of DP (and CP), so a layout with experts can be read in two ways. The last system is that of 0.9
    and before, where CP stays an axis beside it.
    """
    systems: list[tuple[str, ...]] = [("tp", "cp", "dp", "pp")]
    expert_tp = "tp" if sizes.expert_tp == sizes.tp else "expert_tp"
    if sizes.ep > 1:
        systems += [(expert_tp, "ep", "expert_dp", "pp"), (expert_tp, "cp", "ep", "expert_dp", "pp")]
    ranks_per_model = sizes.tp * sizes.cp * sizes.dp * sizes.pp
    fitting = [system for system in systems if prod(getattr(sizes, axis) for axis in system) == ranks_per_model]
    real = dict.fromkeys(tuple(axis for axis in system if getattr(sizes, axis) > 1) for system in fitting)
    return [axes for axes in real if len({_point(at, axes) for at in coordinates.values()}) == len(coordinates)]


def _point(at: Coordinates, axes: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(getattr(at, axis) for axis in axes)


def _read(
    ranks: Collection[int], coordinates: Mapping[int, Coordinates], sizes: ParallelSizes, axes: tuple[str, ...]
) -> tuple[RankGroup, ...]:
    places = {_point(at, axes): rank for rank, at in coordinates.items()}
    products = cover({_point(coordinates[rank], axes) for rank in ranks})
    return tuple(_group(sides, axes, places, coordinates, sizes) for sides in products)


def _group(
    sides: Product,
    axes: tuple[str, ...],
    places: Mapping[tuple[int, ...], int],
    coordinates: Mapping[int, Coordinates],
    sizes: ParallelSizes,
) -> RankGroup:
    named = {
        axis: tuple(sorted(values))
        for axis, values in zip(axes, sides, strict=True)
        if len(values) < getattr(sizes, axis)
    }
    ranks = tuple(sorted(places[point] for point in product(*sides)))
    words = _one_rank(coordinates[ranks[0]], sizes) if len(ranks) == 1 else _several(named, axes)
    return RankGroup(axis="+".join(named), indices=named, words=words, ranks=ranks)


def _one_rank(at: Coordinates, sizes: ParallelSizes) -> str:
    places = [
        f"{axis.upper()} {getattr(at, axis)}" for axis in ("tp", "cp", "ep", "pp", "dp") if getattr(sizes, axis) > 1
    ]
    if not places:
        return phrase("rank {rank}", rank=at.rank)
    return phrase("rank {rank} ({places})", rank=at.rank, places=", ".join(places))


def _several(named: Mapping[str, tuple[int, ...]], axes: tuple[str, ...]) -> str:
    if not named:
        return phrase("all ranks")
    where = joined(LISTED, (_index_of(axis, values) for axis, values in named.items()))
    rest = [_ALL[axis] for axis in axes if axis not in named]
    if not rest:
        return where
    # An index inside a group reads as "everywhere"; a replica or a stage is a place that holds the rest.
    if named.keys().isdisjoint(("dp", "expert_dp", "pp")):
        return phrase("{where} everywhere", where=where)
    return phrase("{where} ({rest})", where=where, rest=joined(LISTED, rest))


def _index_of(axis: str, indices: Sequence[int]) -> str:
    """Return the words for some indices of the axis, such as `pipeline stages 0-2, 5`."""
    if len(indices) == 1:
        return _ONE[axis].format(index=indices[0])
    return _SEVERAL[axis].format(indices=_in_runs(indices))


def _in_runs(indices: Sequence[int]) -> str:
    """Return ascending numbers with neighbours as a range: `0-2, 5`."""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(indices), key=lambda item: item[1] - item[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
