"""Planted faults in the dense layouts A, D, E and H, and what must be reported, worked out by hand.

What the derivations below use again and again:

- A NaN element in a hidden state makes the whole token NaN at the next layer norm. In attention the weighted sum
  multiplies masked positions by 0, and 0 * NaN is NaN: every token of that sample is lost, on the way back likewise.
- The inputs of column-parallel layers get their gradient all-reduced over TP, the outputs of row-parallel layers are
  all-reduced over TP in forward: what happens inside attention or MLP on one TP rank reaches the other.
- The samples' tokens lie in the vocabulary half of one TP rank or the other, never in none: over all TP ranks the word
  embeddings are bad, on a single one they need not be.
- Plain DDP: an element that is bad on one data-parallel rank is bad on all of them after the reduction.
- PP > 1: first and last stage add up the gradients of the tied embeddings after the reduction.
"""

from __future__ import annotations

from tests.ranks.expected import (
    AFTER,
    BEFORE,
    FINAL_NORM,
    FIRST_STAGE,
    HEALTHY,
    OUTPUT,
    OVER_DP,
    OVERFLOW,
    TIED,
    Case,
    Incident,
    below_mlp,
    layers,
)


def one_replica_of_a(local: set[str], *, losses: dict[int, set[int]], reduced: set[str] | None = None) -> Incident:
    """A, G: every parameter named is bad on replica 0 = {0, 1, 4, 5}, and reduced onto replica 1."""
    return Incident(
        kind=BEFORE,
        before={0, 1, 4, 5},
        after_only={2, 3, 6, 7},
        by={OVER_DP: {2, 3, 6, 7}},
        groups=({"dp": (0,)},),
        words=("data-parallel replica 0 (all tensor-parallel ranks, all pipeline stages)",),
        local=local,
        reduced=reduced or local,
        losses=losses,
    )


def one_rank(
    rank: int, place: dict[str, tuple[int, ...]], param: str, by: dict[str, set[int]], **more: object
) -> Incident:
    """One parameter, bad on one rank before the reduction."""
    reached = set().union(*by.values())
    known = {"kind": BEFORE, "local": {param}, "reduced": {param}}
    return Incident(before={rank}, after_only=reached, groups=(place,), by=by, **{**known, **more})  # type: ignore[arg-type]


def only_reduced(rank: int, param: str) -> Incident:
    """One element, bad on one rank after the reduction: every gradient of every rank was finite."""
    return Incident(AFTER, set(), {rank}, (), set(), {param}, counts=(None, 1))


WHOLE_A = layers(range(4)) | FIRST_STAGE | FINAL_NORM | OUTPUT
QKV = "self_attention.linear_qkv.weight"

# rank = tp + 2 * (dp + 2 * pp); layers 0 and 1 on stage 0 = {0, 1, 2, 3}, layers 2 and 3 on stage 1 = {4, 5, 6, 7}.
# Data-parallel groups {0, 2}, {1, 3}, {4, 6}, {5, 7}; tied embeddings {0, 4}, {1, 5}, {2, 6}, {3, 7}.
FORWARD_A = Case(
    "nan@step={step},rank=5,mb=2,phase=forward,module=decoder.layers.3.mlp",
    # The token goes through the final norm on rank 5 alone, its logits meet those of rank 4 in the softmax: the loss
    # is NaN on both. Its gradient then goes back through everything of the replica, on both TP ranks.
    one_replica_of_a(WHOLE_A, losses={2: {4, 5}}),
)
BACKWARD_A = Case(
    "nan@step={step},rank=5,mb=2,phase=backward,module=decoder.layers.3.mlp",
    # Behind the MLP's own all-reduce, so rank 5 alone down to the attention of layer 3, both from there on. Neither
    # the MLP of layer 3 nor what comes after it; the output layer gets it from the embeddings, once they are reduced.
    one_replica_of_a(
        below_mlp(3) | layers([0, 1, 2]) | FIRST_STAGE,
        reduced=below_mlp(3) | layers([0, 1, 2]) | FIRST_STAGE | OUTPUT,
        losses={},
    ),
)
WGRAD_A = Case(
    f"nan@step={{step}},rank=6,phase=wgrad,param=decoder.layers.2.{QKV}",
    one_rank(6, {"tp": (0,), "dp": (1,), "pp": (1,)}, f"decoder.layers.2.{QKV}", {OVER_DP: {4}}, counts=(None, 2)),
)
REDUCED_A = Case(
    f"nan@step={{step}},rank=4,phase=reduced,param=decoder.layers.2.{QKV}", only_reduced(4, f"decoder.layers.2.{QKV}")
)
# Replicated over TP and counted on TP rank 0 only: Megatron's norm does not see it.
NORM_ON_TP_1 = Case(
    "nan@step={step},rank=1,phase=wgrad,param=decoder.layers.0.input_layernorm.weight",
    one_rank(1, {"tp": (1,), "dp": (0,), "pp": (0,)}, "decoder.layers.0.input_layernorm.weight", {OVER_DP: {3}}),
)
# To rank 2 over DP; then the last stage of either replica adds it up with its own copy, over {0, 4} and {2, 6}.
TIED_A = Case(
    "nan@step={step},rank=0,phase=wgrad,param=embedding.word_embeddings.weight",
    one_rank(
        0,
        {"tp": (0,), "dp": (0,), "pp": (0,)},
        "embedding.word_embeddings.weight",
        {OVER_DP: {2}, TIED: {4, 6}},
        reduced={"embedding.word_embeddings.weight"} | OUTPUT,
    ),
)
# The NaN of rank 5's half of the logits is in the sum over the vocabulary, hence in the loss of rank 4 as well.
OUTPUT_A = Case(
    "nan@step={step},rank=5,mb=0,phase=forward,module=output_layer", one_replica_of_a(WHOLE_A, losses={0: {4, 5}})
)
TP_1_EVERYWHERE = Case(
    "nan@step={step},rank=1+3,phase=wgrad,param=decoder.layers.1.mlp.linear_fc2.bias;"
    "nan@step={step},rank=5+7,phase=wgrad,param=decoder.layers.3.mlp.linear_fc2.bias",
    Incident(
        kind=BEFORE,
        before={1, 3, 5, 7},
        after_only=set(),  # the data-parallel peers were bad themselves
        groups=({"tp": (1,)},),
        words=("TP index 1 everywhere",),
        local={"decoder.layers.1.mlp.linear_fc2.bias", "decoder.layers.3.mlp.linear_fc2.bias"},
        reduced={"decoder.layers.1.mlp.linear_fc2.bias", "decoder.layers.3.mlp.linear_fc2.bias"},
    ),
)
PATTERNS_A = (
    Case(
        "inf@step={step},rank=2,phase=wgrad,param=decoder.layers.1.mlp.linear_fc1.bias",
        one_rank(
            2,
            {"tp": (0,), "dp": (1,), "pp": (0,)},
            "decoder.layers.1.mlp.linear_fc1.bias",
            {OVER_DP: {0}},
            pattern="inf",
        ),
    ),
    Case(
        "-inf@step={step},rank=7,phase=wgrad,param=decoder.final_layernorm.bias",
        one_rank(
            7, {"tp": (1,), "dp": (1,), "pp": (1,)}, "decoder.final_layernorm.bias", {OVER_DP: {5}}, pattern="inf"
        ),
    ),
    # 1e30 squared is beyond fp32, 1e30 is not; the mean over two replicas, 5e29, is no better.
    Case(
        "1e30@step={step},rank=1,phase=wgrad,param=decoder.layers.0.mlp.linear_fc1.weight",
        one_rank(
            1,
            {"tp": (1,), "dp": (0,), "pp": (0,)},
            "decoder.layers.0.mlp.linear_fc1.weight",
            {OVER_DP: {3}},
            kind=OVERFLOW,
            pattern="finite",
        ),
    ),
    # A row of [128, 64] on two replicas.
    Case(
        "row@step={step},rank=4,phase=wgrad,param=decoder.layers.2.mlp.linear_fc1.weight,index=3",
        one_rank(
            4,
            {"tp": (0,), "dp": (0,), "pp": (1,)},
            "decoder.layers.2.mlp.linear_fc1.weight",
            {OVER_DP: {6}},
            counts=(None, 2 * 64),
        ),
    ),
    # The second head's 16 columns in 64 rows of [64, 32], on two replicas.
    Case(
        "head@step={step},rank=4,phase=wgrad,param=decoder.layers.2.self_attention.linear_proj.weight,index=1",
        one_rank(
            4,
            {"tp": (0,), "dp": (0,), "pp": (1,)},
            "decoder.layers.2.self_attention.linear_proj.weight",
            {OVER_DP: {6}},
            counts=(None, 2 * 16 * 64),
        ),
    ),
    # Finite, and plausible: nothing that looks at values alone can see it.
    Case("stale@step={step},rank=1,phase=wgrad,param=decoder.layers.0.mlp.linear_fc1.weight", None),
    # Every step from here on, but once only: the steps after this one are healthy.
    Case(
        f"nan@step={{step}}-999,rank=6,phase=wgrad,param=decoder.layers.3.{QKV},once",
        one_rank(6, {"tp": (0,), "dp": (1,), "pp": (1,)}, f"decoder.layers.3.{QKV}", {OVER_DP: {4}}),
    ),
    HEALTHY,
)
A = (FORWARD_A, BACKWARD_A, WGRAD_A, REDUCED_A, HEALTHY, NORM_ON_TP_1, TIED_A, OUTPUT_A, TP_1_EVERYWHERE, *PATTERNS_A)
# Recomputed forwards are poisoned like the first ones; where the NaN goes does not change.
AR = (BACKWARD_A, FORWARD_A)

# One stage: the output layer is the word embeddings' own tensor. DP2 is ranks 0 and 1.
WHOLE_D = layers(range(4)) | FIRST_STAGE | FINAL_NORM
D1 = (
    Case(
        "nan@step={step},rank=0,mb=3,phase=forward,module=decoder.layers.1.mlp",
        Incident(BEFORE, {0}, set(), ({},), WHOLE_D, WHOLE_D, losses={3: {0}}),
    ),
    Case(
        "nan@step={step},rank=0,mb=1,phase=backward,module=decoder.layers.1.mlp",
        Incident(
            *(BEFORE, {0}, set(), ({},)),
            local=below_mlp(1) | layers([0]) | FIRST_STAGE,
            reduced=below_mlp(1) | layers([0]) | FIRST_STAGE,
        ),
    ),
    # Nobody shares the buffer: what is counted before the reduction is what is counted after it.
    Case(
        f"nan@step={{step}},rank=0,phase=wgrad,param=decoder.layers.2.{QKV}",
        one_rank(0, {}, f"decoder.layers.2.{QKV}", {OVER_DP: set()}, counts=(1, 1)),
    ),
)
D2 = (
    Case(
        "nan@step={step},rank=1,mb=3,phase=forward,module=decoder.layers.1.mlp",
        Incident(BEFORE, {1}, {0}, ({"dp": (1,)},), WHOLE_D, WHOLE_D, {OVER_DP: {0}}, losses={3: {1}}),
    ),
    Case(
        "nan@step={step},rank=1,mb=1,phase=backward,module=decoder.layers.1.mlp",
        Incident(
            *(BEFORE, {1}, {0}, ({"dp": (1,)},)),
            local=below_mlp(1) | layers([0]) | FIRST_STAGE,
            reduced=below_mlp(1) | layers([0]) | FIRST_STAGE,
            by={OVER_DP: {0}},
        ),
    ),
    Case(
        f"nan@step={{step}},rank=0,phase=wgrad,param=decoder.layers.2.{QKV}",
        one_rank(0, {"dp": (0,)}, f"decoder.layers.2.{QKV}", {OVER_DP: {1}}, counts=(None, 2)),
    ),
    Case(
        f"nan@step={{step}},rank=1,phase=reduced,param=decoder.layers.2.{QKV}",
        only_reduced(1, f"decoder.layers.2.{QKV}"),
    ),
)

# rank = dp + 2 * pp; stage s holds layers s and s + 4. Tied embeddings {0, 6}, {1, 7}.
WHOLE_E = layers(range(8)) | FIRST_STAGE | FINAL_NORM | OUTPUT
BELOW_MLP_1_OF_E = below_mlp(1) | layers([0]) | FIRST_STAGE
E = (
    Case(
        "nan@step={step},rank=3,mb=1,phase=backward,module=decoder.layers.1.mlp",
        # The first chunk of stage 1, then that of stage 0, of replica 1. Over DP to {0, 2}; the embeddings of {0, 1} go
        # on to {6, 7}. Stage 2 = {4, 5} is not reached at all.
        Incident(
            kind=BEFORE,
            before={1, 3},
            after_only={0, 2, 6, 7},
            by={OVER_DP: {0, 2}, TIED: {6, 7}},
            groups=({"dp": (1,), "pp": (0, 1)},),
            local=BELOW_MLP_1_OF_E,
            reduced=BELOW_MLP_1_OF_E | OUTPUT,
        ),
    ),
    Case(
        "nan@step={step},rank=3,mb=3,phase=forward,module=decoder.layers.5.mlp",
        # The second chunk of stage 1, layers 6 and 7, the loss on rank 7, and all the way back.
        Incident(
            kind=BEFORE,
            before={1, 3, 5, 7},
            after_only={0, 2, 4, 6},
            by={OVER_DP: {0, 2, 4, 6}},
            groups=({"dp": (1,)},),
            local=WHOLE_E,
            reduced=WHOLE_E,
            losses={3: {7}},
        ),
    ),
    Case(
        "nan@step={step},rank=7,phase=wgrad,param=output_layer.weight",
        # To rank 6 over DP, from both to their first stages.
        one_rank(
            7,
            {"dp": (1,), "pp": (3,)},
            "output_layer.weight",
            {OVER_DP: {6}, TIED: {0, 1}},
            reduced={"embedding.word_embeddings.weight"} | OUTPUT,
        ),
    ),
    Case(
        "nan@step={step},rank=2,phase=reduced,param=decoder.layers.5.mlp.linear_fc1.bias",
        only_reduced(2, "decoder.layers.5.mlp.linear_fc1.bias"),
    ),
)

# rank = tp + 2 * (cp + 2 * dp); gradients are reduced over DP and CP: {0, 2, 4, 6}, {1, 3, 5, 7}. One stage.
H = (
    Case(
        "nan@step={step},rank=3,mb=1,phase=forward,module=decoder.layers.1.mlp",
        # Keys and values of layer 2 are gathered over CP {1, 3}, its output is all-reduced over TP {0, 1} and {2, 3}.
        Incident(
            kind=BEFORE,
            before={0, 1, 2, 3},
            after_only={4, 5, 6, 7},
            by={OVER_DP: {4, 5, 6, 7}},
            groups=({"dp": (0,)},),
            local=WHOLE_D,
            reduced=WHOLE_D,
            losses={1: {0, 1, 2, 3}},
        ),
    ),
    Case(
        "nan@step={step},rank=3,mb=2,phase=backward,module=decoder.layers.1.mlp",
        # The gradient of gathered keys and values goes to rank 1, that of the attention's input over TP to 0 and 2.
        Incident(
            kind=BEFORE,
            before={0, 1, 2, 3},
            after_only={4, 5, 6, 7},
            by={OVER_DP: {4, 5, 6, 7}},
            groups=({"dp": (0,)},),
            local=below_mlp(1) | layers([0]) | FIRST_STAGE,
            reduced=below_mlp(1) | layers([0]) | FIRST_STAGE,
        ),
    ),
    Case(
        "nan@step={step},rank=6,phase=wgrad,param=decoder.layers.2.mlp.linear_fc2.weight",
        one_rank(
            6,
            {"tp": (0,), "cp": (1,), "dp": (1,)},
            "decoder.layers.2.mlp.linear_fc2.weight",
            {OVER_DP: {0, 2, 4}},
            counts=(None, 4),
        ),
    ),
    Case(
        "nan@step={step},rank=5,phase=reduced,param=decoder.layers.2.mlp.linear_fc2.weight",
        only_reduced(5, "decoder.layers.2.mlp.linear_fc2.weight"),
    ),
)
