"""The order of layers, and their names on an axis."""

from __future__ import annotations

from megatron_nanguard.report.html.pictures.axes import layers_in_order, short_names
from tests.unit.report.html.factories import row


def test_layers_of_all_stages_stand_in_forward_order() -> None:
    names = ("decoder.layers.10", "decoder.layers.9", "output_layer", "embedding")
    rows = [row(rank, norm_by_layer={name: 1.0}) for rank, name in enumerate(names)]

    assert layers_in_order(rows) == ("embedding", "decoder.layers.9", "decoder.layers.10", "output_layer")


def test_one_stack_goes_by_numbers_and_two_by_their_names() -> None:
    assert short_names(["embedding", "decoder.layers.3", "decoder.final_layernorm"]) == (
        "embedding",
        "3",
        "final_layernorm",
    )
    assert short_names(["encoder.layers.3", "decoder.layers.3"]) == ("encoder 3", "decoder 3")
    assert short_names([]) == ()
