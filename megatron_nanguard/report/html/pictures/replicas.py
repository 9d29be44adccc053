"""Charts that compare the data-parallel replicas: gradient norms by layer, and losses by micro-batch.

All replicas hold the same weights, so a replica that differs had other data, another device, or a fault.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

from megatron_nanguard.postmortem.rank_table import RankRow, RankState
from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.phrase import FOLLOWED, LISTED, joined, phrase
from megatron_nanguard.report.formatting import and_more, as_sentence
from megatron_nanguard.report.html.pictures.axes import layers_in_order, log_axis, short_names, x_axis
from megatron_nanguard.report.html.pictures.figure import Figure, PlotlyDict, escape
from megatron_nanguard.report.html.pictures.norm_heatmap import badness
from megatron_nanguard.report.sections.norms_by_layer import scaled_words

SHOWN_LINES: Final = 16
"""Number of lines that are drawn one by one; the others are drawn as a range."""
DASHES: Final = ("solid", "dash", "dot", "dashdot")

TWO_PANELS: Final[dict[str, PlotlyDict]] = {
    "yaxis": {"domain": [0, 0.8]},
    "yaxis2": {"domain": [0.86, 1], "tickvals": [0, 1], "ticktext": ["Inf", "NaN"], "range": [-0.6, 1.6]},
}
ONE_PANEL: Final[dict[str, PlotlyDict]] = {"yaxis": {"domain": [0, 1]}}
BAD: Final = (RankState.ORIGIN, RankState.BAD_BEFORE)
NORMS: Final = phrase(
    "Norms of the local gradients of {where}, one line per data-parallel replica, thick where it was bad "
    "before the reduction. Replicas hold the same weights: one that differs had other data or a fault."
)


LOSSES: Final = phrase("The loss of each micro-batch of the step, one line per data-parallel replica.")


@dataclass(frozen=True)
class Series:
    """The line of one replica.

    Attributes:
        name: name of the replica, such as "dp 0".
        values: one per position on the x axis; None where the value is unknown.
        was_bad: whether the replica was bad before the reduction; its line is thicker, and always drawn.
    """

    name: str
    values: tuple[float | None, ...]
    was_bad: bool

    @property
    def is_finite(self) -> bool:
        """Whether the line has no NaN and no Inf."""
        return all(value is None or math.isfinite(value) for value in self.values)


def compare_norms(rows: Sequence[RankRow], sizes: ParallelSizes, loss_scale: float | None) -> Figure | None:
    """Compare the gradient norms of one pipeline stage and tensor-parallel rank over all replicas.

    Args:
        rows: one per rank.
        sizes: the parallel layout.
        loss_scale: factor on the loss, and so on every norm; None where there is none.
    Returns:
        The chart; None where fewer than two replicas recorded norms.
    """
    known = [row for row in rows if row.norm_by_layer]
    if not known:
        return None
    # The place that is compared is that of the origin, else of the first rank in the worst state.
    states = list(RankState)
    worst = min(known, key=lambda row: (states.index(row.state), row.rank))
    place_of = attrgetter("coordinates.pp", "coordinates.cp", "coordinates.tp")
    peers = [row for row in known if place_of(row) == place_of(worst)]
    if len(peers) < 2:
        return None
    layers = layers_in_order(peers)
    series = [
        Series(
            f"dp {row.coordinates.dp} (rank {row.rank})",
            tuple(row.norm_by_layer.get(layer) for layer in layers),
            row.state in BAD,
        )
        for row in peers
    ]
    axes = zip(("pp", "cp", "tp"), place_of(worst), (sizes.pp, sizes.cp, sizes.tp), strict=True)
    where = " ".join(f"{axis}{index}" for axis, index, size in axes if size > 1)
    return Figure(
        name="replicas",
        title=phrase("Replica comparison: gradient norms"),
        caption=joined(
            FOLLOWED,
            (NORMS.format(where=where or phrase("the model")), *map(as_sentence, scaled_words(loss_scale))),
        ),
        traces=_traces(series),
        layout=_layout(series, short_names(layers), phrase("norm"), "log"),
        width=160 + 30 * len(layers),
    )


def compare_losses(rows: Sequence[RankRow]) -> Figure | None:
    """Compare the losses of the replicas, micro-batch by micro-batch; None where no rank computed a loss."""
    losses: dict[int, dict[int, float]] = defaultdict(dict)
    bad: set[int] = set()
    for row in rows:
        replica = losses[row.coordinates.dp]
        for one in row.microbatches:
            if one.loss is not None and badness(one.loss) >= badness(replica.get(one.index, one.loss)):
                replica[one.index] = one.loss
        if row.state in BAD:
            bad.add(row.coordinates.dp)
    indices = sorted({index for replica in losses.values() for index in replica})
    if not indices:
        return None
    series = [
        Series(f"dp {replica}", tuple(seen.get(index) for index in indices), replica in bad)
        for replica, seen in sorted(losses.items())
        if seen
    ]
    return Figure(
        name="losses",
        title=phrase("Losses by micro-batch"),
        caption=_loss_caption(series, indices),
        traces=_traces(series),
        layout=_layout(series, [str(index) for index in indices], phrase("loss"), "linear"),
        width=160 + 14 * len(indices),
    )


def _loss_caption(series: Sequence[Series], indices: Sequence[int]) -> str:
    bad = [
        phrase("{replica} in micro-batch {index}", replica=one.name, index=indices[position])
        for one in series
        for position, value in enumerate(one.values)
        if value is not None and badness(value)[0]
    ]
    finding = phrase("Not finite: {places}.", places=and_more(LISTED, bad)) if bad else phrase("Every loss is finite.")
    return joined(FOLLOWED, (LOSSES, finding))


def _traces(series: Sequence[Series]) -> tuple[PlotlyDict, ...]:
    """Draw one line per series; if there are many, only the bad and non-finite ones, and the range of the others.

    Args:
        series: the lines, all with the same positions on the x axis.
    """
    drawn = (
        series
        if len(series) <= SHOWN_LINES
        else [one for one in series if one.was_bad or not one.is_finite][:SHOWN_LINES]
    )
    others = [one for one in series if one not in drawn]
    lines = [trace for index, one in enumerate(drawn) for trace in _drawn(one, index)]
    return (*(_range(others) if others else ()), *lines)


def _layout(series: Sequence[Series], ticks: Sequence[str], what: str, scale: Literal["log", "linear"]) -> PlotlyDict:
    """Lay out the chart: two panels over one x axis, or a single panel where every value is finite.

    Args:
        series: the lines.
        ticks: names of the positions on the x axis.
        what: name of the y axis.
        scale: scale of the y axis.
    """
    values = [value for one in series for value in one.values if value is not None and 0 < value < math.inf]
    value_ticks = log_axis(values) if scale == "log" else {}
    panels = ONE_PANEL if all(one.is_finite for one in series) else TWO_PANELS
    return {
        **panels,
        "height": 330,
        "xaxis": x_axis(map(escape, ticks)),
        "yaxis": {**panels["yaxis"], "type": scale, "title": {"text": what}, "nticks": 6, **value_ticks},
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.22},
    }


def _drawn(series: Series, index: int) -> list[PlotlyDict]:
    # Red is only for values that are not finite.
    colour = f"line-{index % 4}" if series.is_finite else "bad"
    name = escape(series.name)
    positions = list(range(len(series.values)))
    finite = [value if value is not None and math.isfinite(value) else None for value in series.values]
    bad = [None if value is None or math.isfinite(value) else int(math.isnan(value)) for value in series.values]
    shared = {"type": "scatter", "x": positions, "name": name, "legendgroup": name}
    line = {
        **shared,
        "y": finite,
        "mode": "lines+markers",
        "line": {"color": colour, "width": 3.5 if series.was_bad else 1.5, "dash": DASHES[index % len(DASHES)]},
        "marker": {"color": colour, "size": 6, "symbol": index % 8},
        "hovertemplate": f"{name}: %{{y:.4g}}<extra></extra>",
    }
    if series.is_finite:
        return [line]
    mark = {
        **shared,
        "y": bad,
        "yaxis": "y2",
        "mode": "markers",
        "showlegend": False,
        "marker": {"color": colour, "size": 10, "symbol": "x"},
        "hovertemplate": phrase("{name}: not finite<extra></extra>", name=name),
    }
    return [line, mark]


def _range(series: Sequence[Series]) -> tuple[PlotlyDict, ...]:
    """Make the traces that shade the range of the finite values at each position."""
    columns = zip(*(one.values for one in series), strict=True)
    finite = [[value for value in column if value is not None and math.isfinite(value)] for column in columns]
    lowest, highest = ([edge(column, default=None) for column in finite] for edge in (min, max))
    number, bad = len(series), sum(not one.is_finite for one in series)
    name = phrase("{number} others, all finite", number=number)
    if bad:
        name = phrase("{number} others, {bad} not finite", number=number, bad=bad)
    line = {"color": "line-0", "width": 1}
    shared = {"type": "scatter", "x": list(range(len(finite))), "mode": "lines", "line": line}
    return (
        {**shared, "y": lowest, "showlegend": False, "hoverinfo": "skip"},
        {**shared, "y": highest, "name": name, "fill": "tonexty", "fillcolor": "shade", "hoverinfo": "skip"},
    )
