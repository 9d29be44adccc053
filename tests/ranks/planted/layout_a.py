"""A and G: TP2 PP2 DP2, plain DDP. rank = tp + 2 * (dp + 2 * pp).

Layers 0 and 1 on stage 0 = {0, 1, 2, 3}, layers 2 and 3 on stage 1 = {4, 5, 6, 7}. Gradients are reduced over {0, 2},
{1, 3}, {4, 6}, {5, 7}; those of the tied embeddings are then added up over {0, 4}, {1, 5}, {2, 6}, {3, 7}.
"""

from __future__ import annotations

from tests.ranks.planted.incident import (
    BEFORE,
    HEALTHY,
    OVER_DP,
    OVERFLOW,
    TIED,
    Case,
    Incident,
    Place,
    one_parameter,
    only_reduced,
)
from tests.ranks.planted.names import FINAL_NORM, FIRST_STAGE, OUTPUT, WORDS, below_mlp, layers

WHOLE = layers(range(4)) | FIRST_STAGE | FINAL_NORM | OUTPUT
BELOW_MLP_3 = below_mlp(3) | layers([0, 1, 2]) | FIRST_STAGE
QKV_OF_2 = "decoder.layers.2.self_attention.linear_qkv.weight"
NORM_OF_0 = "decoder.layers.0.input_layernorm.weight"
FC1_OF_0 = "decoder.layers.0.mlp.linear_fc1.weight"
FC1_OF_2 = "decoder.layers.2.mlp.linear_fc1.weight"
PROJ_OF_2 = "decoder.layers.2.self_attention.linear_proj.weight"


def place(tp: int, dp: int, pp: int) -> Place:
    return {"tp": (tp,), "dp": (dp,), "pp": (pp,)}


def replica_0(local: set[str], *, reduced: set[str], losses: dict[int, set[int]]) -> Incident:
    """Bad all over replica 0 = {0, 1, 4, 5}, and reduced onto replica 1."""
    return Incident(
        kind=BEFORE,
        before={0, 1, 4, 5},
        after_only={2, 3, 6, 7},
        by={OVER_DP: {2, 3, 6, 7}},
        groups=({"dp": (0,)},),
        words=("data-parallel replica 0 (all tensor-parallel ranks, all pipeline stages)",),
        local=local,
        reduced=reduced,
        losses=losses,
    )


# Through the final norm of rank 5 alone into its logits, which meet those of rank 4 in the softmax: both losses are
# NaN. Their gradient goes back through everything that the replica has.
FORWARD = Case(
    "nan@step={step},rank=5,mb=2,phase=forward,module=decoder.layers.3.mlp",
    replica_0(WHOLE, reduced=WHOLE, losses={2: {4, 5}}),
)
# Rank 5 alone as far as the attention of layer 3, both TP ranks from there on. The output layer is reached through the
# embeddings, once they are reduced.
BACKWARD = Case(
    "nan@step={step},rank=5,mb=2,phase=backward,module=decoder.layers.3.mlp",
    replica_0(BELOW_MLP_3, reduced=BELOW_MLP_3 | OUTPUT, losses={}),
)
WGRAD = Case(
    f"nan@step={{step}},rank=6,phase=wgrad,param={QKV_OF_2}",
    one_parameter(6, place(0, 1, 1), QKV_OF_2, {OVER_DP: {4}}, counts=(None, 2)),
)
REDUCED = Case(f"nan@step={{step}},rank=4,phase=reduced,param={QKV_OF_2}", only_reduced(4, QKV_OF_2))
# Its half of the logits is in rank 4's sum over the vocabulary as well.
OUTPUT_LAYER = Case(
    "nan@step={step},rank=5,mb=0,phase=forward,module=output_layer",
    replica_0(WHOLE, reduced=WHOLE, losses={0: {4, 5}}),
)
# Replicated over TP, and counted in Megatron's norm on TP rank 0 only.
NORM_ON_TP_1 = Case(
    f"nan@step={{step}},rank=1,phase=wgrad,param={NORM_OF_0}",
    one_parameter(1, place(1, 0, 0), NORM_OF_0, {OVER_DP: {3}}, counts=(None, 2)),
)
# To rank 2 over DP; then over {0, 4} and {2, 6}.
TIED_WORDS = Case(
    "nan@step={step},rank=0,phase=wgrad,param=embedding.word_embeddings.weight",
    one_parameter(0, place(0, 0, 0), *WORDS, {OVER_DP: {2}, TIED: {4, 6}}, reduced_too=frozenset(OUTPUT)),
)
# The data-parallel peers are bad themselves.
TP_1_EVERYWHERE = Case(
    "nan@step={step},rank=1+3,phase=wgrad,param=decoder.layers.1.mlp.linear_fc2.bias;"
    "nan@step={step},rank=5+7,phase=wgrad,param=decoder.layers.3.mlp.linear_fc2.bias",
    Incident(
        kind=BEFORE,
        before={1, 3, 5, 7},
        after_only=set(),
        groups=({"tp": (1,)},),
        words=("TP index 1 everywhere",),
        local=layers([1, 3], ["mlp.linear_fc2.bias"]),
        reduced=layers([1, 3], ["mlp.linear_fc2.bias"]),
        counts=(None, 4),
    ),
)
PATTERNS = (
    Case(
        f"inf@step={{step}},rank=2,phase=wgrad,param={FC1_OF_0}",
        one_parameter(2, place(0, 1, 0), FC1_OF_0, {OVER_DP: {0}}, pattern="inf"),
    ),
    Case(
        f"-inf@step={{step}},rank=7,phase=wgrad,param={FC1_OF_2}",
        one_parameter(7, place(1, 1, 1), FC1_OF_2, {OVER_DP: {5}}, pattern="inf"),
    ),
    # Its square is beyond fp32, and so is that of the mean over two replicas; the values themselves are not.
    Case(
        f"1e30@step={{step}},rank=1,phase=wgrad,param={FC1_OF_0}",
        one_parameter(1, place(1, 0, 0), FC1_OF_0, {OVER_DP: {3}}, kind=OVERFLOW, pattern="finite"),
    ),
    # One row of [128, 64], on two replicas.
    Case(
        f"row@step={{step}},rank=4,phase=wgrad,param={FC1_OF_2},index=3",
        one_parameter(4, place(0, 0, 1), FC1_OF_2, {OVER_DP: {6}}, counts=(None, 2 * 64)),
    ),
    # The second head's 16 columns of [64, 32], on two replicas.
    Case(
        f"head@step={{step}},rank=4,phase=wgrad,param={PROJ_OF_2},index=1",
        one_parameter(4, place(0, 0, 1), PROJ_OF_2, {OVER_DP: {6}}, counts=(None, 2 * 16 * 64)),
    ),
    # Finite and plausible: no look at values alone can tell.
    Case(f"stale@step={{step}},rank=1,phase=wgrad,param={FC1_OF_0}", None),
    Case(
        f"nan@step={{step}}-999,rank=6,phase=wgrad,param={FC1_OF_2},once",
        one_parameter(6, place(0, 1, 1), FC1_OF_2, {OVER_DP: {4}}, counts=(None, 2)),
    ),
    HEALTHY,
)

CASES = (
    *(FORWARD, BACKWARD, WGRAD, HEALTHY, REDUCED, OUTPUT_LAYER),
    *(NORM_ON_TP_1, TIED_WORDS, TP_1_EVERYWHERE, *PATTERNS),
)
WITH_RECOMPUTE = (BACKWARD, FORWARD)
"""A recomputed forward is poisoned like the first; what the fault reaches does not change."""
