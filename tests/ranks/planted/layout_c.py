"""C: MoE EP2 DP4, distributed optimizer, every token to every expert. rank = dp; rank % 2 tells which experts it has.

Experts 0 to 3 on ranks 0 and 2, experts 4 to 7 on ranks 1 and 3. Tokens travel inside {0, 1} and {2, 3}; experts are
reduced over {0, 2} and {1, 3}, the rest over all four. Ranks 2 and 3 are the second replica of the experts, which says
it with one index where DP needs two. Two buffers, in the reverse order of the model:

    dense    final norm 128, layers 3, 2, 1, 0 with 17152 each, positions 2048, words 8192: 78976, 19744 per owner
             layer: router 512, norm 128, qkv 12288, proj 4096, norm 128
    experts  layers 3, 2, 1, 0 with 131072 each: layers 3 and 2 belong to ranks 0 and 1, layers 1 and 0 to ranks 2 and 3
"""

from __future__ import annotations

from tests.ranks.planted.incident import BEFORE, OVER_DP, Case, Incident, one_parameter, only_reduced
from tests.ranks.planted.names import FINAL_NORM, FIRST_STAGE, below_moe, moe_layers

WHOLE = moe_layers(0, 1, 2, 3) | FIRST_STAGE | FINAL_NORM
BELOW_MOE_1 = below_moe(1) | moe_layers(0) | FIRST_STAGE
EXPERT_5_OF_0 = "decoder.layers.0.mlp.experts.local_experts.5.linear_fc1.weight"
QKV_OF_2 = "decoder.layers.2.self_attention.linear_qkv.weight"

CASES = (
    Case(
        "nan@step={step},rank=2,mb=1,phase=backward,module=decoder.layers.1.mlp",
        # Rank 2 below the experts of layer 1. In layer 0 its tokens' gradients visit the experts of rank 3, which is
        # bad in those alone. Dense elements from layer 1's norm (34432 + 512) to the end belong to ranks 1, 2 and 3,
        # the experts of layer 0 to ranks 2 and 3: rank 0 consumes nothing bad.
        Incident(
            kind=BEFORE,
            before={2, 3},
            after_only={1},
            by={OVER_DP: {1}},
            groups=({"expert_dp": (1,)},),
            local=BELOW_MOE_1,
            reduced=BELOW_MOE_1,
        ),
    ),
    Case(
        "nan@step={step},rank=2,mb=1,phase=forward,module=decoder.layers.1.mlp",
        # Rank 2 in everything dense; the experts of rank 3 in every layer, forward in 2 and 3, backward in all. What
        # comes back to rank 3 for its own tokens is clean: its loss is finite.
        Incident(
            kind=BEFORE,
            before={2, 3},
            after_only={0, 1},
            by={OVER_DP: {0, 1}},
            groups=({"expert_dp": (1,)},),
            local=WHOLE,
            reduced=WHOLE,
            losses={1: {2}},
        ),
    ),
    Case(
        f"nan@step={{step}},rank=1,phase=wgrad,param={EXPERT_5_OF_0}",
        one_parameter(1, {"dp": (1,)}, EXPERT_5_OF_0, {OVER_DP: {3}}, counts=(1, 1)),
    ),
    Case(
        f"nan@step={{step}},rank=1,phase=wgrad,param={QKV_OF_2}",
        # Element 17280 + 640 = 17920, in the first quarter. Rank 1's own value outlives the reduction.
        one_parameter(1, {"dp": (1,)}, QKV_OF_2, {OVER_DP: {0}}, counts=(1, 1)),
    ),
    Case(f"nan@step={{step}},rank=3,phase=reduced,param={EXPERT_5_OF_0}", only_reduced(3, EXPERT_5_OF_0)),
)
