"""The axes of a picture: layers in forward order with short names, and ticks of a log scale."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

from megatron_nanguard.postmortem.rank_table import RankRow
from megatron_nanguard.records.run.parameters import depth_of
from megatron_nanguard.report.html.pictures.figure import PlotlyDict

LAYER: Final = re.compile(r"\bdecoder\.layers\.(\d+)\.?")
DECODER: Final = re.compile(r"\bdecoder\.")
NUMBERED: Final = re.compile(r"^(?P<stack>.*layers)\.(?P<number>\d+)")
SUBDIVIDED_DECADES: Final = 2
MAX_DECADES: Final = 6


def layers_in_order(rows: Sequence[RankRow]) -> tuple[str, ...]:
    """List all layers that a rank has a norm of, from the embedding to the output layer."""
    seen = dict.fromkeys(layer for row in rows for layer in row.norm_by_layer)
    return tuple(sorted(seen, key=depth_of))


def short_names(layers: Iterable[str]) -> tuple[str, ...]:
    """Shorten layer names for an axis: "decoder.layers.3" becomes "3" where the model has one stack of layers."""
    layers = tuple(layers)
    stacks = {found["stack"] for layer in layers if (found := NUMBERED.match(layer))}
    return tuple(_short(layer, alone=len(stacks) == 1) for layer in layers)


def brief(words: str) -> str:
    """Shorten the module names inside a text: "L3 pre_mlp_layernorm.weight"."""
    return DECODER.sub("", LAYER.sub(r"L\1 ", words)).rstrip()


def log_ticks(lowest: float, highest: float) -> list[float]:
    """Choose the ticks of a log scale: powers of ten; on a short scale also 2 and 5 times each.

    Args:
        lowest: smallest value that is drawn, above zero.
        highest: largest value that is drawn.
    Returns:
        The ticks inside the scale; if there are fewer than two, both ends of the scale.
    """
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    digits = (1, 2, 5) if last - first <= SUBDIVIDED_DECADES else (1,)
    step = 1 + (last - first) // MAX_DECADES
    ticks = [digit * 10.0**power for power in range(first, last + 1, step) for digit in digits]
    inside = [tick for tick in ticks if lowest <= tick <= highest]
    return inside if len(inside) > 1 else sorted({lowest, highest})


def log_axis(values: Sequence[float]) -> PlotlyDict:
    """Name the ticks of a log scale with four digits.

    Args:
        values: what is drawn, above zero; plotly chooses the ticks where there is nothing to draw.
    """
    if not values:
        return {}
    ticks = log_ticks(min(values), max(values))
    return {"tickvals": ticks, "ticktext": [f"{tick:.4g}" for tick in ticks]}


def named_axis(names: Sequence[str]) -> PlotlyDict:
    """Name the positions 0, 1, 2 ... of an axis; of many positions, about 40 at equal distances."""
    step = max(1, len(names) // 40)
    return {"tickvals": list(range(0, len(names), step)), "ticktext": list(names[::step])}


def x_axis(names: Iterable[str]) -> PlotlyDict:
    """Name the positions of an x axis, never slanted; a name is broken after each underscore to be narrow."""
    stacked = [name.replace("_", "_<br>") for name in names]
    return {**named_axis(stacked), "tickangle": 0, "tickfont": {"size": 11}}


def _short(layer: str, *, alone: bool) -> str:
    found = NUMBERED.match(layer)
    if found is None:
        return layer.removeprefix("decoder.")
    return found["number"] if alone else f"{found['stack'].removesuffix('.layers')} {found['number']}"
