"""F: MoE EP2 PP2 DP4, plain DDP, every token to every expert. rank = dp + 4 * pp; layers 0 and 1 on ranks 0 to 3.

Experts 0 to 3 on even ranks, 4 to 7 on odd ones. Tokens travel inside {0, 1}, {2, 3}, {4, 5}, {6, 7}; experts are
reduced over {0, 2}, {1, 3}, {4, 6}, {5, 7}, the rest over a whole stage. Ranks 0, 1, 4 and 5 are the first replica of
the experts, which says it with one index where DP needs two.
"""

from __future__ import annotations

from tests.ranks.planted.incident import BEFORE, OVER_DP, Case, Incident, one_parameter, only_reduced
from tests.ranks.planted.names import FINAL_NORM, FIRST_STAGE, OUTPUT, below_moe, moe_layers

WHOLE = moe_layers(0, 1, 2, 3) | FIRST_STAGE | FINAL_NORM | OUTPUT
BELOW_MOE_3 = below_moe(3) | moe_layers(0, 1, 2) | FIRST_STAGE
EXPERT_2_OF_3 = "decoder.layers.3.mlp.experts.local_experts.2.linear_fc1.weight"
ROUTER_OF_3 = "decoder.layers.3.mlp.router.weight"
ROUTER_OF_0 = "decoder.layers.0.mlp.router.weight"
PLACE_OF_6 = {"dp": (2,), "pp": (1,)}


def of_expert_group(local: set[str], *, reduced: set[str], losses: dict[int, set[int]]) -> Incident:
    """Ranks 1 and 5 in everything they have, their expert peers 0 and 4 in the experts that their tokens visit."""
    return Incident(
        kind=BEFORE,
        before={0, 1, 4, 5},
        after_only={2, 3, 6, 7},
        by={OVER_DP: {2, 3, 6, 7}},
        groups=({"expert_dp": (0,)},),
        local=local,
        reduced=reduced,
        losses=losses,
    )


CASES = (
    Case(
        "nan@step={step},rank=5,mb=3,phase=forward,module=decoder.layers.2.mlp",
        of_expert_group(WHOLE, reduced=WHOLE, losses={3: {5}}),
    ),
    Case(
        "nan@step={step},rank=5,mb=0,phase=backward,module=decoder.layers.3.mlp",
        # Rank 4 in the experts of layer 2, ranks 1 and 0 in stage 0 as rank 5's gradient comes there.
        of_expert_group(BELOW_MOE_3, reduced=BELOW_MOE_3 | OUTPUT, losses={}),
    ),
    Case(
        f"nan@step={{step}},rank=6,phase=wgrad,param={EXPERT_2_OF_3}",
        one_parameter(6, PLACE_OF_6, EXPERT_2_OF_3, {OVER_DP: {4}}, counts=(None, 2)),
    ),
    Case(
        f"nan@step={{step}},rank=6,phase=wgrad,param={ROUTER_OF_3}",
        one_parameter(6, PLACE_OF_6, ROUTER_OF_3, {OVER_DP: {4, 5, 7}}, counts=(None, 4)),
    ),
    Case(f"nan@step={{step}},rank=1,phase=reduced,param={ROUTER_OF_0}", only_reduced(1, ROUTER_OF_0)),
)
