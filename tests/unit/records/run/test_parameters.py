"""Which layer a parameter belongs to, and how deep that stands."""

from __future__ import annotations

import math

import pytest

from megatron_nanguard.records.run.parameters import depth_of, layer_of


@pytest.mark.parametrize(
    ("name", "layer", "depth"),
    [
        ("embedding.word_embeddings.weight", "embedding", -1.0),
        ("decoder.layers.11.mlp.linear_fc1.weight", "decoder.layers.11", 11.0),
        ("chunk1:decoder.layers.2.mlp.linear_fc1.weight", "chunk1:decoder.layers.2", 2.0),
        ("mtp.layers.0.eh_proj.weight", "mtp.layers.0", 1e6),
        ("decoder.final_layernorm.weight", "decoder.final_layernorm", math.inf),
        ("chunk1:decoder.final_layernorm.weight", "chunk1:decoder.final_layernorm", math.inf),
        ("output_layer.weight", "output_layer", math.inf),
        ("", "", math.inf),
    ],
)
def test_a_parameter_has_its_layer_and_depth(name: str, layer: str, depth: float) -> None:
    assert layer_of(name) == layer
    assert depth_of(name) == depth
    assert depth_of(layer) == depth
