"""What a planted fault must be reported as: the form, and the names that parameters have in the small models.

Nothing here is read off a run. Names are those that Megatron gives a GPT with learned positions and tied embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

BEFORE, AFTER, OVERFLOW = "gradient_before_reduction", "gradient_after_reduction", "norm_overflow"

OVER_DP = "data-parallel reduction"
OVER_TP = "gradient all-reduce over tensor parallel ranks"
TIED = "gradient all-reduce of tied embeddings"

NORMS = {f"{norm}.{part}" for norm in ("input_layernorm", "pre_mlp_layernorm") for part in ("weight", "bias")}
ATTENTION = {f"self_attention.linear_{name}.{part}" for name in ("proj", "qkv") for part in ("weight", "bias")}
MLP = {f"mlp.linear_{name}.{part}" for name in ("fc1", "fc2") for part in ("weight", "bias")}
MOE_ATTENTION = {"self_attention.linear_proj.weight", "self_attention.linear_qkv.weight"}

FIRST_STAGE = {"embedding.word_embeddings.weight", "embedding.position_embeddings.weight"}
FINAL_NORM = {"decoder.final_layernorm.weight", "decoder.final_layernorm.bias"}
OUTPUT = {"output_layer.weight"}
"""The copy of the word embeddings on the last of several stages; one stage has the word embeddings alone."""


@dataclass(frozen=True)
class Incident:
    """One incident, as the layout and the place of the fault demand it.

    Attributes:
        kind: where the values were met first.
        before: ranks with bad gradients of their own.
        after_only: ranks that only communication can have reached.
        by: of those, which communication reached them.
        groups: `before` as products of axes: the axes on which each is not everything.
        words: the same in words; empty where there is nothing to say beyond the rank.
        local: parameters bad before the reduction, on any rank.
        reduced: parameters bad in what some optimizer consumes.
        pattern: of every parameter, before and after.
        losses: micro-batch to the ranks whose loss is not finite.
        counts: NaN and Inf elements over all ranks, before and after, where they can be counted.
    """

    kind: str
    before: set[int]
    after_only: set[int]
    groups: tuple[dict[str, tuple[int, ...]], ...]
    local: set[str]
    reduced: set[str]
    by: Mapping[str, set[int]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    pattern: str = "nan"
    losses: Mapping[int, set[int]] = field(default_factory=dict)
    counts: tuple[int | None, int | None] | None = None


@dataclass(frozen=True)
class Case:
    """A planted fault and what must come of it.

    Attributes:
        drill: specification with `{step}` where its step goes; empty for a healthy step.
        incident: None where nothing may be reported.
    """

    drill: str
    incident: Incident | None


HEALTHY = Case("", None)


def layers(numbers: Iterable[int], names: Iterable[str] = NORMS | ATTENTION | MLP) -> set[str]:
    """Global names of parameters in some layers; by default all of a dense layer."""
    return {f"decoder.layers.{number}.{name}" for number in numbers for name in names}


def below_mlp(number: int, attention: Iterable[str] = ATTENTION) -> set[str]:
    """What a bad gradient at the input of a layer's MLP reaches in that layer: not the MLP itself."""
    return layers([number], NORMS | set(attention))


def experts(numbers: Iterable[int], which: Iterable[int]) -> set[str]:
    """Weights of some of the eight experts, by their global numbers."""
    return {
        f"decoder.layers.{number}.mlp.experts.local_experts.{expert}.linear_fc{half}.weight"
        for number in numbers
        for expert in which
        for half in (1, 2)
    }


def moe_layers(numbers: Iterable[int]) -> set[str]:
    """All of some layers with eight experts; linear layers there have no bias."""
    numbers = list(numbers)
    return layers(numbers, NORMS | MOE_ATTENTION | {"mlp.router.weight"}) | experts(numbers, range(8))
