"""A line chart on a log or linear scale, with a panel above it for what no scale can show: NaN and Inf."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.report.html.pictures.axes import log_axis, x_axis
from megatron_nanguard.report.html.pictures.figure import PlotlyDict, escape

SHOWN_LINES: Final = 16
"""Number of lines that are drawn one by one; the others are drawn as a range."""
DASHES: Final = ("solid", "dash", "dot", "dashdot")

TWO_PANELS: Final[dict[str, PlotlyDict]] = {
    "yaxis": {"domain": [0, 0.8]},
    "yaxis2": {"domain": [0.86, 1], "tickvals": [0, 1], "ticktext": ["Inf", "NaN"], "range": [-0.6, 1.6]},
}
ONE_PANEL: Final[dict[str, PlotlyDict]] = {"yaxis": {"domain": [0, 1]}}


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


def traces(series: Sequence[Series]) -> tuple[PlotlyDict, ...]:
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


def layout(series: Sequence[Series], ticks: Sequence[str], what: str, scale: Literal["log", "linear"]) -> PlotlyDict:
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
