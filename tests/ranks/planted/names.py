"""Global names of the parameters of the small models: Megatron's for a GPT with learned positions, tied embeddings."""

from __future__ import annotations

from collections.abc import Iterable

NORMS = {f"{norm}.{part}" for norm in ("input_layernorm", "pre_mlp_layernorm") for part in ("weight", "bias")}
ATTENTION = {f"self_attention.linear_{name}.{part}" for name in ("proj", "qkv") for part in ("weight", "bias")}
MLP = {f"mlp.linear_{name}.{part}" for name in ("fc1", "fc2") for part in ("weight", "bias")}

WORDS = {"embedding.word_embeddings.weight"}
FIRST_STAGE = WORDS | {"embedding.position_embeddings.weight"}
FINAL_NORM = {"decoder.final_layernorm.weight", "decoder.final_layernorm.bias"}
OUTPUT = {"output_layer.weight"}
"""The last stage's copy of the word embeddings; a model of one stage has none."""


def layers(numbers: Iterable[int], names: Iterable[str] = NORMS | ATTENTION | MLP) -> set[str]:
    """Parameters of some layers; by default all of a dense one."""
    names = tuple(names)
    return {f"decoder.layers.{number}.{name}" for number in numbers for name in names}


def below_mlp(number: int) -> set[str]:
    """What a bad gradient at the input of a layer's MLP reaches in that layer: everything but the MLP."""
    return layers([number], NORMS | ATTENTION)


def experts(numbers: Iterable[int], which: Iterable[int]) -> set[str]:
    """Weights of some of the eight experts in some layers."""
    which = tuple(which)
    return {
        f"decoder.layers.{number}.mlp.experts.local_experts.{expert}.linear_fc{half}.weight"
        for number in numbers
        for expert in which
        for half in (1, 2)
    }


MOE_ATTENTION = {name for name in ATTENTION if name.endswith("weight")}  # --disable-bias-linear


def moe_layers(*numbers: int) -> set[str]:
    """All of some layers with experts."""
    return layers(numbers, NORMS | MOE_ATTENTION | {"mlp.router.weight"}) | experts(numbers, range(8))


def below_moe(number: int) -> set[str]:
    """What a bad gradient at the input of a layer's experts and router reaches in that layer."""
    return layers([number], NORMS | MOE_ATTENTION)
