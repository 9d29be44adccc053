"""Gradient norms of the step by layer, before the data-parallel reduction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from megatron_nanguard.postmortem.rank_table import RankRow
from megatron_nanguard.records.phrase import LISTED, joined, phrase
from megatron_nanguard.records.run.parameters import depth_of
from megatron_nanguard.report.blocks import Bar, Block, Tone
from megatron_nanguard.report.formatting import number, which_ranks
from megatron_nanguard.report.opened_incident import OpenedIncident

SHOWN_LAYERS: Final = 32
READING: Final = phrase("the largest finite norm over the ranks that hold the layer, on a logarithmic scale")
SCALED: Final = phrase("all norms are multiplied by the loss scale {scale}")
TITLE: Final = phrase("Gradient norms by layer, before the reduction")
NOT_TAKEN: Final = phrase(
    "No rank recorded norms by layer, as with --nanguard-norms bucket, so there is nothing to draw."
)


@dataclass
class _Layer:
    """One layer, or several neighbours that share a bar: the largest finite norm, and the ranks with NaN or Inf."""

    names: tuple[str, ...]
    largest: float | None = None
    bad: dict[str, set[int]] = field(default_factory=lambda: {"NaN": set(), "Inf": set()})

    def add(self, rank: int, norm: float) -> None:
        if math.isfinite(norm):
            self.largest = norm if self.largest is None else max(self.largest, norm)
        else:
            self.bad["NaN" if math.isnan(norm) else "Inf"].add(rank)


def describe(opened: OpenedIncident) -> Block | None:
    """Show a bar for each layer in forward order; in a deep model, neighbours bad on the same ranks share one."""
    layers = _layers(opened.rows)
    if not layers:
        return Block(TITLE, notes=(NOT_TAKEN,)) if any(row.has_file for row in opened.rows) else None
    return Block(
        TITLE, bars=tuple(map(_bar, _fewer(layers))), notes=(READING, *scaled_words(opened.incident.loss_scale))
    )


def scaled_words(loss_scale: float | None) -> tuple[str, ...]:
    """Return a note that the norms contain the loss scale; empty where there is no loss scale, or it is 1."""
    return (SCALED.format(scale=number(loss_scale)),) if loss_scale not in (None, 1.0) else ()


def _layers(rows: Sequence[RankRow]) -> list[_Layer]:
    layers: dict[str, _Layer] = {}
    for row in rows:
        for name, norm in row.norm_by_layer.items():
            if norm is not None:
                layers.setdefault(name, _Layer((name,))).add(row.rank, norm)
    return [layers[name] for name in sorted(layers, key=depth_of)]


def _fewer(layers: list[_Layer]) -> list[_Layer]:
    """Join neighbours that are bad on the same ranks until the bars fit on a screen."""
    together = math.ceil(len(layers) / SHOWN_LAYERS)
    fewer: list[_Layer] = []
    for layer in layers:
        last = fewer[-1] if fewer else None
        if last and len(last.names) < together and last.bad == layer.bad and "layers." in layer.names[0]:
            largest = [norm for norm in (last.largest, layer.largest) if norm is not None]
            fewer[-1] = _Layer((*last.names, *layer.names), max(largest, default=None), last.bad)
        else:
            fewer.append(layer)
    return fewer


def _bar(layer: _Layer) -> Bar:
    label = layer.names[0]
    if len(layer.names) > 1:
        label = phrase("{first} to {last}", first=label, last=layer.names[-1].rpartition(".")[2])
    is_bad = any(layer.bad.values())
    return Bar(label, layer.largest, joined(LISTED, _words(layer)), Tone.BAD if is_bad else Tone.PLAIN)


def _words(layer: _Layer) -> Iterator[str]:
    if layer.largest is not None:
        yield f"{layer.largest:.4g}"
    yield from (
        phrase("{what} on {ranks}", what=what, ranks=which_ranks(sorted(ranks)))
        for what, ranks in layer.bad.items()
        if ranks
    )
