"""Gradient norms by layer."""

from __future__ import annotations

import math

from megatron_nanguard.report.blocks import Bar, Block, Tone
from megatron_nanguard.report.sections import norms_by_layer
from tests.unit.report.factories import described, opened_incident, row


def layer(number: int) -> str:
    return f"decoder.layers.{number}"


def test_without_norms_there_is_no_section() -> None:
    assert norms_by_layer.describe(opened_incident()) is None


def test_files_without_norms_say_why_there_is_no_picture() -> None:
    assert norms_by_layer.describe(opened_incident(rows=[row(0), row(1, norm_by_layer={layer(0): None})])) == Block(
        "Gradient norms by layer, before the reduction",
        notes=("No rank recorded norms by layer, as with --nanguard-norms bucket, so there is nothing to draw.",),
    )


def test_a_note_says_that_norms_contain_the_loss_scale() -> None:
    rows = [row(0, norm_by_layer={layer(0): 1.0})]
    scaled = "all norms are multiplied by the loss scale 1024"
    assert described(norms_by_layer.describe, opened_incident(rows=rows, loss_scale=1024.0)).notes[1:] == (scaled,)
    assert described(norms_by_layer.describe, opened_incident(rows=rows, loss_scale=1.0)).notes[1:] == ()


def test_layers_are_in_forward_order_with_the_ranks_that_are_bad() -> None:
    rows = [
        row(4, norm_by_layer={layer(10): math.nan, "decoder.final_layernorm": 0.5, "output_layer": 0.25}),
        row(5, norm_by_layer={layer(10): math.inf, "decoder.final_layernorm": 0.125}),
        row(6, norm_by_layer={layer(10): 3.0}),
        row(0, norm_by_layer={"embedding": 1.0, layer(2): math.nan}),
        row(1, norm_by_layer={"embedding": 2.0, layer(2): math.nan}),
    ]

    assert norms_by_layer.describe(opened_incident(rows=rows)) == Block(
        "Gradient norms by layer, before the reduction",
        bars=(
            Bar("embedding", 2.0, "2"),
            Bar("decoder.layers.2", None, "NaN on ranks 0, 1", Tone.BAD),
            Bar("decoder.layers.10", 3.0, "3, NaN on rank 4, Inf on rank 5", Tone.BAD),
            Bar("decoder.final_layernorm", 0.5, "0.5"),
            Bar("output_layer", 0.25, "0.25"),
        ),
        notes=("the largest finite norm over the ranks that hold the layer, on a logarithmic scale",),
    )


def test_neighbours_that_are_bad_on_the_same_ranks_share_a_bar_in_a_deep_model() -> None:
    norms: dict[str, float | None] = {layer(number): float(number) for number in range(96)}
    norms[layer(4)] = math.nan

    bars = described(norms_by_layer.describe, opened_incident(rows=[row(0, norm_by_layer=norms)])).bars

    assert [(bar.label, bar.text) for bar in bars[:4]] == [
        ("decoder.layers.0 to 2", "2"),
        ("decoder.layers.3", "3"),
        ("decoder.layers.4", "NaN on rank 0"),
        ("decoder.layers.5 to 7", "7"),
    ]
    assert len(bars) == 34
