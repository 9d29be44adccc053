"""Gradient norms as a matrix of pipelines and layers.

A row is one pipeline: the ranks that share their place on every axis but pp. Each layer is on one stage of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from megatron_nanguard.postmortem.rank_table import RankRow
from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.report.html.pictures.axes import layers_in_order

SHOWN_ROWS: Final = 48


@dataclass(frozen=True)
class NormCell:
    """The norm of one layer in one row.

    Attributes:
        rank: the rank that has the norm; the worst one where several ranks share the row.
        norm: the norm of the gradients of the layer, before the reduction.
    """

    rank: int
    norm: float


@dataclass(frozen=True)
class NormRow:
    """One pipeline, or one replica where its tensor-parallel ranks are folded into a row.

    Attributes:
        name: name of the pipeline, such as "dp 0, tp 1".
        cells: one per layer; None where no norm is known.
    """

    name: str
    cells: tuple[NormCell | None, ...]


@dataclass(frozen=True)
class NormMatrix:
    """Norms of all layers.

    Attributes:
        layers: names, in forward order.
        rows: the worst ones where there are too many, in the order of their places.
        left_out: how many rows are not shown.
        bad_left_out: how many of these are not finite.
        is_folded: whether a row is a whole replica, whose cells show their worst rank.
    """

    layers: tuple[str, ...]
    rows: tuple[NormRow, ...]
    left_out: int
    bad_left_out: int
    is_folded: bool


def badness(norm: float) -> tuple[int, float]:
    """Return a key that sorts norms: NaN above Inf, and Inf above every number."""
    if math.isnan(norm):
        return 2, 0.0
    return (1, 0.0) if math.isinf(norm) else (0, norm)


def norm_matrix(rows: Sequence[RankRow], sizes: ParallelSizes) -> NormMatrix:
    """Arrange the norms that the ranks recorded.

    Args:
        rows: one per rank.
        sizes: the parallel layout.
    """
    known = [row for row in rows if row.norm_by_layer]
    layers = layers_in_order(known)
    is_folded = len({_place(row, is_folded=False) for row in known}) > SHOWN_ROWS
    pipelines: dict[tuple[int, ...], list[RankRow]] = defaultdict(list)
    for row in known:
        pipelines[_place(row, is_folded=is_folded)].append(row)
    worst_first = sorted(pipelines, key=lambda place: (not _is_bad(pipelines[place]), place))
    shown = sorted(worst_first[:SHOWN_ROWS])
    return NormMatrix(
        layers=layers,
        rows=tuple(NormRow(_name(place, sizes), _cells(pipelines[place], layers)) for place in shown),
        left_out=len(pipelines) - len(shown),
        bad_left_out=sum(_is_bad(pipelines[place]) for place in worst_first[SHOWN_ROWS:]),
        is_folded=is_folded,
    )


def _place(row: RankRow, *, is_folded: bool) -> tuple[int, ...]:
    place = row.coordinates
    return (place.dp,) if is_folded else (place.dp, place.cp, place.tp)


def _name(place: tuple[int, ...], sizes: ParallelSizes) -> str:
    axes = zip(("dp", "cp", "tp"), place, (sizes.dp, sizes.cp, sizes.tp), strict=False)
    named = [f"{axis} {index}" for axis, index, size in axes if size > 1]
    return ", ".join(named) or "all ranks"


def _is_bad(ranks: Sequence[RankRow]) -> bool:
    return any(norm is not None and not math.isfinite(norm) for row in ranks for norm in row.norm_by_layer.values())


def _cells(ranks: Sequence[RankRow], layers: Sequence[str]) -> tuple[NormCell | None, ...]:
    worst: dict[str, NormCell] = {}
    for row in ranks:
        for layer, norm in row.norm_by_layer.items():
            if norm is None:
                continue
            if layer not in worst or badness(norm) > badness(worst[layer].norm):
                worst[layer] = NormCell(row.rank, norm)
    return tuple(worst.get(layer) for layer in layers)
