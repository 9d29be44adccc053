"""The heat map of gradient norms, which shows which pipeline is bad, and from which layer on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from megatron_nanguard.postmortem.rank_table import RankRow
from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.phrase import ALONGSIDE, FOLLOWED, joined, phrase
from megatron_nanguard.report.formatting import and_more, as_sentence, counted, number
from megatron_nanguard.report.html.pictures.axes import layers_in_order, log_axis, named_axis, short_names, x_axis
from megatron_nanguard.report.html.pictures.figure import Figure, PlotlyDict, shorten
from megatron_nanguard.report.sections.norms_by_layer import scaled_words

READING: Final = phrase(
    "Norms of the local gradients before the reduction, on a log scale. A row is {what}, a column is a "
    "layer in forward order: {finding}."
)
WORDED_LAYERS: Final = 24
"""Largest number of layers whose cells have room for a word."""
SHOWN_ROWS: Final = 48

WORDS: Final = ("NaN", "Inf", "0")
COLOURS: Final = ("bad", "inf", "zero")
"""What a log scale cannot show, and the colour of each."""

BANDS: Final = [[edge / len(COLOURS), colour] for index, colour in enumerate(COLOURS) for edge in (index, index + 1)]


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


def heat_map(rows: Sequence[RankRow], sizes: ParallelSizes, loss_scale: float | None) -> Figure | None:
    """Draw the gradient norms of all layers; None where no rank recorded them.

    Args:
        rows: one per rank.
        sizes: the parallel layout.
        loss_scale: factor on the loss, and so on every norm; None where there is none.
    """
    matrix = norm_matrix(rows, sizes)
    if not matrix.rows:
        return None
    return Figure(
        name="norms",
        title=phrase("Gradient norms by layer and rank"),
        caption=joined(
            FOLLOWED,
            (*_caption(matrix), *map(as_sentence, scaled_words(loss_scale)), phrase("Click a cell to see its rank.")),
        ),
        traces=(_finite(matrix), _special(matrix, is_worded=len(matrix.layers) <= WORDED_LAYERS)),
        layout=_layout(matrix),
        width=150 + (44 if len(matrix.layers) <= WORDED_LAYERS else 22) * len(matrix.layers),
    )


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
        rows=tuple(NormRow(_row_name(place, sizes), _worst_cells(pipelines[place], layers)) for place in shown),
        left_out=len(pipelines) - len(shown),
        bad_left_out=sum(_is_bad(pipelines[place]) for place in worst_first[SHOWN_ROWS:]),
        is_folded=is_folded,
    )


def _place(row: RankRow, *, is_folded: bool) -> tuple[int, ...]:
    place = row.coordinates
    return (place.dp,) if is_folded else (place.dp, place.cp, place.tp)


def _row_name(place: tuple[int, ...], sizes: ParallelSizes) -> str:
    axes = zip(("dp", "cp", "tp"), place, (sizes.dp, sizes.cp, sizes.tp), strict=False)
    named = [f"{axis} {index}" for axis, index, size in axes if size > 1]
    return ", ".join(named) or "all ranks"


def _is_bad(ranks: Sequence[RankRow]) -> bool:
    return any(norm is not None and not math.isfinite(norm) for row in ranks for norm in row.norm_by_layer.values())


def _worst_cells(ranks: Sequence[RankRow], layers: Sequence[str]) -> tuple[NormCell | None, ...]:
    worst: dict[str, NormCell] = {}
    for row in ranks:
        for layer, norm in row.norm_by_layer.items():
            if norm is None:
                continue
            if layer not in worst or badness(norm) > badness(worst[layer].norm):
                worst[layer] = NormCell(row.rank, norm)
    return tuple(worst.get(layer) for layer in layers)


def _caption(matrix: NormMatrix) -> Iterator[str]:
    bad = [row.name for row in matrix.rows if any(_word(cell) in WORDS[:2] for cell in row.cells)]
    finding = phrase("not finite in {lines}", lines=and_more(ALONGSIDE, bad)) if bad else phrase("every norm is finite")
    what = phrase("a pipeline of ranks")
    if matrix.is_folded:
        what = phrase("a replica, with the worst of its ranks in each cell")
    yield READING.format(what=what, finding=finding)
    if matrix.left_out:
        yield phrase(
            "Not shown: {rows}, {bad} of them not finite.",
            rows=counted(matrix.left_out, "row"),
            bad=matrix.bad_left_out,
        )


def _finite(matrix: NormMatrix) -> PlotlyDict:
    """Make the trace that shows the logarithm of the finite norms."""
    values = [[_logarithm(cell) for cell in row.cells] for row in matrix.rows]
    ticks = log_axis([10**value for line in values for value in line if value is not None])
    if ticks:
        ticks["tickvals"] = list(map(math.log10, ticks["tickvals"]))
    return {
        **_cells(matrix),
        "z": values,
        "colorscale": [[0, "low"], [0.5, "middle"], [1, "high"]],
        "colorbar": {"thickness": 10, "len": 1, "outlinewidth": 0, **ticks},
    }


def _special(matrix: NormMatrix, *, is_worded: bool) -> PlotlyDict:
    """Make the trace that shows NaN, Inf and zero, each in its own colour."""
    words = [[_word(cell) for cell in row.cells] for row in matrix.rows]
    return {
        **_cells(matrix),
        "z": [[WORDS.index(word) if word else None for word in line] for line in words],
        "zmin": -0.5,
        "zmax": len(WORDS) - 0.5,
        "colorscale": BANDS,
        "showscale": False,
        "text": words,
        "texttemplate": "%{text}" if is_worded else "",
        "textfont": {"color": "on-bad"},
    }


def _cells(matrix: NormMatrix) -> PlotlyDict:
    """Make the plotly settings that both traces share."""
    return {
        "type": "heatmap",
        "x": list(range(len(matrix.layers))),
        "y": list(range(len(matrix.rows))),
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "customdata": [[_hover(cell, matrix.layers[x]) for x, cell in enumerate(row.cells)] for row in matrix.rows],
        "hovertemplate": "rank %{customdata[0]}<br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
    }


def _layout(matrix: NormMatrix) -> PlotlyDict:
    names = (shorten(name, 24) for name in short_names(matrix.layers))
    return {
        "height": 110 + max(16, min(34, 900 // len(matrix.rows))) * len(matrix.rows),
        "xaxis": {**x_axis(names), "title": {"text": phrase("layer")}},
        "yaxis": {**named_axis([row.name for row in matrix.rows]), "autorange": "reversed"},
    }


def _word(cell: NormCell | None) -> str:
    if cell is None or _logarithm(cell) is not None:
        return ""
    return "NaN" if math.isnan(cell.norm) else "Inf" if math.isinf(cell.norm) else "0"


def _logarithm(cell: NormCell | None) -> float | None:
    return math.log10(cell.norm) if cell and math.isfinite(cell.norm) and cell.norm > 0 else None


def _hover(cell: NormCell | None, layer: str) -> list[int | str]:
    return [cell.rank, shorten(layer), phrase("norm {norm}", norm=number(cell.norm))] if cell else []
