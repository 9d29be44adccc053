"""H: CP2 TP2 DP2, plain DDP. rank = tp + 2 * (cp + 2 * dp); one stage.

Gradients are reduced over DP and CP together: {0, 2, 4, 6}, {1, 3, 5, 7}.
"""

from __future__ import annotations

from tests.ranks.planted.incident import BEFORE, OVER_DP, Case, Incident, one_parameter, only_reduced
from tests.ranks.planted.names import FINAL_NORM, FIRST_STAGE, below_mlp, layers

WHOLE = layers(range(4)) | FIRST_STAGE | FINAL_NORM
BELOW_MLP_1 = below_mlp(1) | layers([0]) | FIRST_STAGE
FC2_OF_2 = "decoder.layers.2.mlp.linear_fc2.weight"


def replica_0(bad: set[str], losses: dict[int, set[int]]) -> Incident:
    """Bad on all TP and CP ranks of replica 0, reduced onto those of replica 1."""
    return Incident(
        kind=BEFORE,
        before={0, 1, 2, 3},
        after_only={4, 5, 6, 7},
        by={OVER_DP: {4, 5, 6, 7}},
        groups=({"dp": (0,)},),
        local=bad,
        reduced=bad,
        losses=losses,
    )


CASES = (
    Case(
        "nan@step={step},rank=3,mb=1,phase=forward,module=decoder.layers.1.mlp",
        # Keys and values of layer 2 are gathered over CP {1, 3}, its output is all-reduced over TP {0, 1} and {2, 3}.
        replica_0(WHOLE, {1: {0, 1, 2, 3}}),
    ),
    Case(
        "nan@step={step},rank=3,mb=2,phase=backward,module=decoder.layers.1.mlp",
        # The gradient of the gathered keys and values goes to rank 1, that of the attention's input to ranks 2 and 0.
        replica_0(BELOW_MLP_1, {}),
    ),
    Case(
        f"nan@step={{step}},rank=6,phase=wgrad,param={FC2_OF_2}",
        one_parameter(6, {"tp": (0,), "cp": (1,), "dp": (1,)}, FC2_OF_2, {OVER_DP: {0, 2, 4}}, counts=(None, 4)),
    ),
    Case(f"nan@step={{step}},rank=5,phase=reduced,param={FC2_OF_2}", only_reduced(5, FC2_OF_2)),
)
