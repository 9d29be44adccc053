"""B: TP2 DP4, sequence parallel, distributed optimizer. rank = tp + 2 * dp; every rank has all four layers.

One bucket, in the reverse order of the model; each of the four data-parallel ranks of a TP index owns a quarter:

    final norm 128, layers 3, 2, 1, 0 with 25184 each, positions 2048, words 4096: 107008 elements, 26752 per owner
    dp 0   0 ... 26752       final norm, layer 3, the MLP of layer 2 as far as 1440 elements go
    dp 1   26752 ... 53504   the rest of layer 2, of layer 1 (from 50496 on) its fc2
    dp 2   53504 ... 80256   layer 1 from the middle of fc2.weight on, of layer 0 (from 75680 on) the first 4576
    dp 3   80256 ... 107008  layer 0 from the middle of fc2.weight on, embeddings

    layer   fc2.bias 64, fc2.weight 8192, fc1.bias 128, fc1.weight 8192, norm 128, qkv.bias 96, qkv.weight 6144,
            proj.bias 64, proj.weight 2048, norm 128
"""

from __future__ import annotations

from tests.ranks.planted.incident import BEFORE, OVER_DP, OVER_TP, Case, Incident, one_parameter, only_reduced
from tests.ranks.planted.names import FINAL_NORM, FIRST_STAGE, below_mlp, layers

WHOLE = layers(range(4)) | FIRST_STAGE | FINAL_NORM
BELOW_MLP_1 = below_mlp(1) | layers([0]) | FIRST_STAGE
FC1_OF_1 = "decoder.layers.1.mlp.linear_fc1.weight"
FC1_OF_0 = "decoder.layers.0.mlp.linear_fc1.weight"
NORM_OF_3 = "decoder.layers.3.input_layernorm.weight"

BACKWARD = Case(
    "nan@step={step},rank=3,mb=1,phase=backward,module=decoder.layers.1.mlp",
    # Rank 3 holds the second half of the sequence. Its norm and proj.bias see the NaN alone; the gradient of the
    # attention's output is gathered over TP, so everything below is bad on rank 2 too. In the bucket that is from
    # layer 1's norm (50496 + 16576 = 67072) to the end: owners dp 2 and dp 3, and the norms that TP adds up.
    Incident(
        kind=BEFORE,
        before={2, 3},
        after_only={4, 5, 6, 7},
        by={OVER_DP: {4, 5, 6, 7}},
        groups=({"dp": (1,)},),
        words=("data-parallel replica 1 (all tensor-parallel ranks)",),
        local=BELOW_MLP_1,
        reduced=BELOW_MLP_1,
    ),
)
FORWARD = Case(
    "nan@step={step},rank=3,mb=1,phase=forward,module=decoder.layers.1.mlp",
    # The attention of layer 2 gathers the sequence: both TP ranks. Every quarter of the bucket has bad elements.
    Incident(
        kind=BEFORE,
        before={2, 3},
        after_only={0, 1, 4, 5, 6, 7},
        by={OVER_DP: {0, 1, 4, 5, 6, 7}},
        groups=({"dp": (1,)},),
        local=WHOLE,
        reduced=WHOLE,
        losses={1: {2, 3}},
    ),
)
WGRAD = Case(
    f"nan@step={{step}},rank=3,phase=wgrad,param={FC1_OF_1}",
    # Element 50496 + 8384 = 58880: owned by dp 2, rank 5 of TP index 1. Rank 3's own value outlives the reduction.
    one_parameter(3, {"tp": (1,), "dp": (1,)}, FC1_OF_1, {OVER_DP: {5}}, counts=(1, 1)),
)
NORM_WGRAD = Case(
    f"nan@step={{step}},rank=3,phase=wgrad,param={NORM_OF_3}",
    # Owned by dp 0, rank 1; then sequence parallelism adds up norms over TP: rank 0.
    one_parameter(3, {"tp": (1,), "dp": (1,)}, NORM_OF_3, {OVER_DP: {1}, OVER_TP: {0}}, counts=(None, 2)),
)
REDUCED = Case(f"nan@step={{step}},rank=6,phase=reduced,param={FC1_OF_0}", only_reduced(6, FC1_OF_0))

CASES = (BACKWARD, FORWARD, WGRAD, NORM_WGRAD, REDUCED)
