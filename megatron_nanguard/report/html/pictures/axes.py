"""The layers of the model in forward order, whichever ranks hold them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from megatron_nanguard.postmortem.rank_table import RankRow
from megatron_nanguard.records.parameters import depth_of

LAYER = re.compile(r"\bdecoder\.layers\.(\d+)\.?")
DECODER = re.compile(r"\bdecoder\.")
LEVEL = {"tickangle": 0, "tickfont": {"size": 11}}
"""Names below an axis, none of them slanted."""
NUMBERED = re.compile(r"^(?P<stack>.*layers)\.(?P<number>\d+)")


def layers_in_order(rows: Sequence[RankRow]) -> tuple[str, ...]:
    """Every layer that a rank has a norm of."""
    seen = dict.fromkeys(layer for row in rows for layer in row.norm_by_layer)
    return tuple(sorted(seen, key=depth_of))


def short_names(layers: Iterable[str]) -> tuple[str, ...]:
    """Names as an axis has room for them: "decoder.layers.3" -> "3" where the model has one stack of layers."""
    layers = tuple(layers)
    stacks = {found["stack"] for layer in layers if (found := NUMBERED.match(layer))}
    return tuple(_short(layer, alone=len(stacks) == 1) for layer in layers)


def stacked(name: str) -> str:
    """A name in lines, broken after its underlines: as narrow as a column."""
    return name.replace("_", "_<br>")


def brief(words: str) -> str:
    """Names inside of words, as a picture has room for them: "L3 pre_mlp_layernorm.weight"."""
    return DECODER.sub("", LAYER.sub(r"L\1 ", words)).rstrip()


def _short(layer: str, *, alone: bool) -> str:
    found = NUMBERED.match(layer)
    if found is None:
        return layer.removeprefix("decoder.")
    return found["number"] if alone else f"{found['stack'].removesuffix('.layers')} {found['number']}"


SUBDIVIDED_DECADES = 2
MOST_DECADES = 6


def log_ticks(lowest: float, highest: float) -> list[float]:
    """Powers of ten, with 2 and 5 of each where there are few; both ends where none of these lie between them.

    Args:
        lowest: smallest value that is drawn, above zero.
        highest: largest.
    """
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    digits = (1, 2, 5) if last - first <= SUBDIVIDED_DECADES else (1,)
    step = 1 + (last - first) // MOST_DECADES
    ticks = [digit * 10.0**power for power in range(first, last + 1, step) for digit in digits]
    inside = [tick for tick in ticks if lowest <= tick <= highest]
    return inside if len(inside) > 1 else sorted({lowest, highest})


def tick_name(tick: float) -> str:
    """Four digits, which an axis has room for."""
    return f"{tick:.4g}"
