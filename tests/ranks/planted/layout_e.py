"""E: PP4 VPP2 DP2, plain DDP. rank = dp + 2 * pp; stage s holds layer s in its first chunk and s + 4 in its second.

Gradients are reduced over {0, 1}, {2, 3}, {4, 5}, {6, 7}; those of the tied embeddings added up over {0, 6}, {1, 7}.
"""

from __future__ import annotations

from tests.ranks.planted.incident import BEFORE, OVER_DP, TIED, Case, Incident, one_parameter, only_reduced
from tests.ranks.planted.names import FINAL_NORM, FIRST_STAGE, OUTPUT, WORDS, below_mlp, layers

WHOLE = layers(range(8)) | FIRST_STAGE | FINAL_NORM | OUTPUT
BELOW_MLP_1 = below_mlp(1) | layers([0]) | FIRST_STAGE

CASES = (
    Case(
        "nan@step={step},rank=3,mb=1,phase=backward,module=decoder.layers.1.mlp",
        # Stage 1 and stage 0 of replica 1. Over DP to {0, 2}; the embeddings of {0, 1} go on to {6, 7}. Stage 2, which
        # is {4, 5}, sees nothing of it.
        Incident(
            kind=BEFORE,
            before={1, 3},
            after_only={0, 2, 6, 7},
            by={OVER_DP: {0, 2}, TIED: {6, 7}},
            groups=({"dp": (1,), "pp": (0, 1)},),
            local=BELOW_MLP_1,
            reduced=BELOW_MLP_1 | OUTPUT,
        ),
    ),
    Case(
        "nan@step={step},rank=3,mb=3,phase=forward,module=decoder.layers.5.mlp",
        # The second chunk of stage 1, on through layers 6 and 7 to the loss on rank 7, and all the way back.
        Incident(
            kind=BEFORE,
            before={1, 3, 5, 7},
            after_only={0, 2, 4, 6},
            by={OVER_DP: {0, 2, 4, 6}},
            groups=({"dp": (1,)},),
            local=WHOLE,
            reduced=WHOLE,
            losses={3: {7}},
        ),
    ),
    Case(
        "nan@step={step},rank=7,phase=wgrad,param=output_layer.weight",
        # To rank 6 over DP, from both to their first stages.
        one_parameter(7, {"dp": (1,), "pp": (3,)}, *OUTPUT, {OVER_DP: {6}, TIED: {0, 1}}, reduced_too=frozenset(WORDS)),
    ),
    Case(
        "nan@step={step},rank=2,phase=reduced,param=decoder.layers.5.mlp.linear_fc1.bias",
        only_reduced(2, "decoder.layers.5.mlp.linear_fc1.bias"),
    ),
)
