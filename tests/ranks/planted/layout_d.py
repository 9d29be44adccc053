"""D1: one rank; D2: DP2, plain DDP. One stage: the output layer is the word embeddings' own tensor."""

from __future__ import annotations

from tests.ranks.planted.incident import BEFORE, OVER_DP, Case, Incident, Place, one_parameter, only_reduced
from tests.ranks.planted.names import FINAL_NORM, FIRST_STAGE, below_mlp, layers

WHOLE = layers(range(4)) | FIRST_STAGE | FINAL_NORM
BELOW_MLP_1 = below_mlp(1) | layers([0]) | FIRST_STAGE
QKV_OF_2 = "decoder.layers.2.self_attention.linear_qkv.weight"


def one_of(rank: int, place: Place, peers: set[int], bad: set[str], losses: dict[int, set[int]]) -> Incident:
    """Bad on one rank, and on its peers after the reduction."""
    return Incident(BEFORE, {rank}, peers, (place,), bad, bad, by={OVER_DP: peers}, losses=losses)


ONE_RANK = (
    Case(
        "nan@step={step},rank=0,mb=1,phase=backward,module=decoder.layers.1.mlp", one_of(0, {}, set(), BELOW_MLP_1, {})
    ),
    Case(
        "nan@step={step},rank=0,mb=3,phase=forward,module=decoder.layers.1.mlp",
        one_of(0, {}, set(), WHOLE, {3: {0}}),
    ),
    # Nobody shares the buffer: what is counted before the reduction is what is counted after it.
    Case(
        f"nan@step={{step}},rank=0,phase=wgrad,param={QKV_OF_2}",
        one_parameter(0, {}, QKV_OF_2, {OVER_DP: set()}, counts=(1, 1)),
    ),
)
TWO_RANKS = (
    Case(
        "nan@step={step},rank=1,mb=3,phase=forward,module=decoder.layers.1.mlp",
        one_of(1, {"dp": (1,)}, {0}, WHOLE, {3: {1}}),
    ),
    Case(
        "nan@step={step},rank=1,mb=1,phase=backward,module=decoder.layers.1.mlp",
        one_of(1, {"dp": (1,)}, {0}, BELOW_MLP_1, {}),
    ),
    Case(
        f"nan@step={{step}},rank=0,phase=wgrad,param={QKV_OF_2}",
        one_parameter(0, {"dp": (0,)}, QKV_OF_2, {OVER_DP: {1}}, counts=(None, 2)),
    ),
    Case(f"nan@step={{step}},rank=1,phase=reduced,param={QKV_OF_2}", only_reduced(1, QKV_OF_2)),
)
