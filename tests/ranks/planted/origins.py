"""Faults in real operators, per layout: where they begin and which collective carries them to whom, by hand.

What `incident.py` says of how a NaN spreads holds here too. A rank is reached first in the forward or backward of the
micro-batch itself, over TP, CP or EP inside a stage and by p2p between stages; whoever is not, is reached when the
gradients are reduced, where its own part of them is bad. A log in the forward spoils the whole output of its module,
one in the backward a single element of the gradient that comes in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

ALLREDUCE, COALESCED = "allreduce_", "allreduce_coalesced_"
SCATTERED = "reduce_scatter_tensor_coalesced_"
ALLTOALL, GATHERED, SCATTERED_SEQUENCE = "alltoall_base_", "_allgather_base_", "_reduce_scatter_base_"

BACKWARD_LINE = "LogOfNegative.backward"


class Carried(NamedTuple):
    """How a fault came to a rank: operator, group, ranks that sent what was bad."""

    by: str
    group: str
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Begins:
    """Where a fault begins.

    Attributes:
        function: of the source line.
        nan_count: in the output; None where it is not counted.
    """

    rank: int
    microbatch: int
    phase: str
    module: str
    operator: str
    function: str | None
    pattern: str = "nan"
    nan_count: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class RealFault:
    """A planted fault and what must be said of it.

    Attributes:
        faults: as `real_faults.py` takes them, without the step.
        origins: earliest first; none where it is not to be found again.
        carried: per rank that is reached; the others are clean.
        cause: the most likely one; empty where that is not what the case is about.
        comes_back: in a replay.
    """

    faults: tuple[str, ...]
    origins: tuple[Begins, ...]
    carried: Mapping[int, Carried] = field(default_factory=dict)
    cause: str = ""
    comes_back: bool = True


def p2p(source: int, destination: int) -> Carried:
    return Carried("recv_", f"rank {source} to rank {destination}", (source,))


def over(by: str, group: str, ranks: str, *sources: int) -> Carried:
    return Carried(by, f"{group}, ranks {ranks}", sources)


def log(rank: int, microbatch: int, layer: int, length: int = 32) -> Begins:
    """In every element of [length, batch 2, hidden 64]."""
    module = f"decoder.layers.{layer}.mlp"
    return Begins(rank, microbatch, "forward", module, "log", "forward_log", nan_count=length * 2 * 64)


def log_back(rank: int, microbatch: int, layer: int, submodule: str = "mlp") -> Begins:
    module = f"decoder.layers.{layer}.{submodule}"
    return Begins(rank, microbatch, "backward", module, "log", BACKWARD_LINE, nan_count=1)


def exp(rank: int, microbatch: int, phase: str, layer: int) -> Begins:
    return Begins(rank, microbatch, phase, f"decoder.layers.{layer}.mlp", "exp", "exp_clamp", "inf", 0)


# A and G: stage 0 = {0, 1, 2, 3}, stage 1 = {4, 5, 6, 7}, TP in pairs, replica 0 = {0, 1, 4, 5} ---------------------


def a_tp(first: int, source: int) -> Carried:
    """Inside a pair of tensor-parallel ranks."""
    pp, dp = divmod(first // 2, 2)
    return over(ALLREDUCE, f"tensor-parallel group of pp{pp} dp{dp}", f"{first}, {first + 1}", source)


def a_dp(first: int, source: int) -> Carried:
    """Between the replicas."""
    pp, tp = divmod(first, 4)
    return over(COALESCED, f"data-parallel group of tp{tp} pp{pp}", f"{first}, {first + 2}", source)


TO_REPLICA_1 = {2: a_dp(0, 0), 3: a_dp(1, 1), 6: a_dp(4, 4), 7: a_dp(5, 5)}

# Layer 1 is the last of stage 0: to rank 5 by p2p, in its first row-parallel output to rank 4, and back to rank 0.
A_FORWARD = RealFault(
    ("forward_log:1:1:mlp:1",),
    (log(1, 1, 1),),
    {5: p2p(1, 5), 4: a_tp(4, 5), 0: p2p(4, 0), **TO_REPLICA_1},
    cause="numerics",
)
# The gradient at the input of the column-parallel fc1 is added up over TP. Masks of -inf are present everywhere.
A_BACKWARD = RealFault(
    ("backward_log:5:3:mlp:2", "healthy_mask:-:-:self_attention.core_attention:-"),
    (log_back(5, 2, 3),),
    {4: a_tp(4, 5), 0: p2p(4, 0), 1: p2p(5, 1), **TO_REPLICA_1},
    cause="numerics",
)
A_WGRAD = RealFault(
    ("wgrad:6:2:self_attention.linear_qkv:3",),
    (log_back(6, 3, 2, "self_attention.linear_qkv"),),
    {4: a_dp(4, 6)},
)
# Both members have it from the same sum: one origin.
A_COLLECTIVE = RealFault(
    ("collective_overflow:4+5:2:mlp:0",),
    (
        Begins(
            *(4, 0, "forward", "decoder.layers.2.mlp", ALLREDUCE, "collective_overflow", "inf"),
            ranks=(4, 5),
        ),
    ),
    {0: p2p(4, 0), 1: p2p(5, 1), **TO_REPLICA_1},
    cause="numerics",
)
# Replica 1 from its first layer on, replica 0 from the last layer down.
A_TWO = RealFault(
    ("forward_log:2:0:mlp:1", "backward_log:5:3:mlp:1"),
    (log(2, 1, 0), log_back(5, 1, 3)),
    {3: a_tp(2, 2), 6: p2p(2, 6), 7: p2p(3, 7), 4: a_tp(4, 5), 0: p2p(4, 0), 1: p2p(5, 1)},
)
# Layer 2 is the first of stage 1: the other TP rank is reached in layer 3.
AR_FORWARD = RealFault(
    ("forward_log:7:2:mlp:1",),
    (log(7, 1, 2),),
    {6: a_tp(6, 7), 2: p2p(6, 2), 3: p2p(7, 3), 0: a_dp(0, 2), 1: a_dp(1, 3), 4: a_dp(4, 6), 5: a_dp(5, 7)},
)
# The first forward ran without gradients: nothing of it is left that a gradient could lead back to.
AR_RECOMPUTE = RealFault(
    ("exp_clamp:5:3:mlp:2",),
    (exp(5, 2, "recompute", 3),),
    {4: a_tp(4, 5), 0: p2p(4, 0), 1: p2p(5, 1), **TO_REPLICA_1},
    cause="loss_or_mask",
)
G_BACKWARD = RealFault(
    ("backward_log:6:2:mlp:1",),
    (log_back(6, 1, 2),),
    {7: a_tp(6, 6), 2: p2p(6, 2), 3: p2p(7, 3), 0: a_dp(0, 2), 1: a_dp(1, 3), 4: a_dp(4, 6), 5: a_dp(5, 7)},
)

# B: rank = tp + 2 * dp; owners of the gradients as in layout_b.py -----------------------------------------------------


def b_tp(source: int) -> Carried:
    """The sequence of replica 1 is gathered."""
    return over(GATHERED, "tensor-parallel group of pp0 dp1", "2, 3", source)


def b_dp(tp: int, source: int) -> Carried:
    """A quarter of the gradients goes to each owner."""
    return over(SCATTERED, f"data-parallel group of tp{tp} pp0", ", ".join(str(tp + 2 * dp) for dp in range(4)), source)


# From row 0 of layer 1's fc2 on (element 50560): dp 1 itself, dp 2 and dp 3.
B_BACKWARD = RealFault(
    ("backward_log:3:1:mlp:1",),
    (log_back(3, 1, 1),),
    {2: b_tp(3), 4: b_dp(0, 2), 6: b_dp(0, 2), 5: b_dp(1, 3), 7: b_dp(1, 3)},
)
# The last micro-batch, whose gradients are being reduced while its backward runs. Element 58880 belongs to dp 2.
B_WGRAD = RealFault(
    ("wgrad:3:1:mlp.linear_fc1:3",),
    (log_back(3, 3, 1, "mlp.linear_fc1"),),
    {5: b_dp(1, 3)},
)
B_FORWARD = RealFault(
    ("forward_log:3:1:mlp:0",),
    (log(3, 0, 1, length=16),),
    {2: b_tp(3), **{rank: b_dp(0, 2) for rank in (0, 4, 6)}, **{rank: b_dp(1, 3) for rank in (1, 5, 7)}},
)

# C: rank = dp; owners of the gradients as in layout_c.py ------------------------------------------------------------

C_EXPERTS = "expert-parallel group of tp0 pp0"


def c_dp(*sources: int) -> Carried:
    return over(SCATTERED, "data-parallel group of tp0 pp0", "0, 1, 2, 3", *sources)


# Tokens visit the experts of rank 3. Of what is dense, all from layer 1's router (element 34432) on: dp 1, 2 and 3; the
# experts of layers 1 and 0 belong to ranks 2 and 3.
C_BACKWARD = RealFault(
    ("backward_log:2:1:mlp:1",),
    (log_back(2, 1, 1),),
    {3: over(ALLTOALL, C_EXPERTS, "2, 3", 2), 1: c_dp(2)},
)
# Element 17280 belongs to dp 0.
C_ROUTER = RealFault(("wgrad:1:2:mlp.router:3",), (log_back(1, 3, 2, "mlp.router"),), {0: c_dp(1)})
# Dense gradients are reduced before those of experts.
C_FORWARD = RealFault(
    ("forward_log:2:1:mlp:1",),
    (log(2, 1, 1),),
    {3: over(ALLTOALL, C_EXPERTS, "2, 3", 2), 0: c_dp(2), 1: c_dp(2)},
)

# C with EP4: every rank has two experts. Each token visits the two of its partner, 0 and 1, 2 and 3: in the exchange of
# all four ranks what is bad on rank 2 reaches rank 3 alone. Experts are reduced with nobody, the rest as in C.

TO_PARTNER = "partner:-:-:mlp.router:-"
C4_GROUP = "data- and expert-parallel group of tp0 pp0"


def c4(by: str, source: int) -> Carried:
    return over(by, C4_GROUP, "0, 1, 2, 3", source)


# Below the experts of layer 0 there is what is dense in it, and the embeddings: element 51584 to the end, which belong
# to ranks 2 and 3. Ranks 0 and 1 stay clean.
C4_BACKWARD = RealFault(
    ("backward_log:2:0:mlp:1", TO_PARTNER), (log_back(2, 1, 0),), {3: c4(ALLTOALL, 2)}, cause="numerics"
)
# Rank 3 meets the tokens of rank 2 in its experts of layer 2; what is dense on it is finite.
C4_FORWARD = RealFault(
    ("forward_log:2:1:mlp:1", TO_PARTNER),
    (log(2, 1, 1),),
    {3: c4(ALLTOALL, 2), 0: c4(SCATTERED, 2), 1: c4(SCATTERED, 2)},
    cause="numerics",
)

# D1: one rank -------------------------------------------------------------------------------------------------------

D_FORWARD = RealFault(("forward_log:0:1:mlp:1",), (log(0, 1, 1),), cause="numerics")
D_BACKWARD = RealFault(("backward_log:0:1:mlp:2",), (log_back(0, 2, 1),), cause="numerics")
D_EXP = RealFault(("exp_clamp:0:1:mlp:3",), (exp(0, 3, "forward", 1),), cause="loss_or_mask")
# One row of [seq 32, batch 2, hidden 64].
D_MASKED = RealFault(
    ("masked_row:0:2:mlp:0",),
    (Begins(0, 0, "forward", "decoder.layers.2.mlp", "_softmax", "masked_row", nan_count=2 * 64),),
    cause="loss_or_mask",
)
D_TRANSIENT = RealFault(("transient:0:1:mlp:1",), (), comes_back=False)
FC2_OF_1 = "decoder.layers.1.mlp.linear_fc2"
D_WEIGHT = RealFault(
    ("nan_weight:0:1:mlp.linear_fc2:-",),
    (Begins(0, 0, "load", FC2_OF_1, f"parameter {FC2_OF_1}.weight", None, nan_count=1),),
    cause="state_corruption",
)

# With full recompute: the layer is computed again in the calling thread, the bottom of the stack in another one.
D_DEEP = (
    RealFault(("deep_exp:0:1:mlp:2",), (exp(0, 2, "recompute", 1),), cause="loss_or_mask"),
    RealFault(("deep_log:0:1:mlp:1",), (log_back(0, 1, 1),), cause="numerics"),
)

# E: rank = dp + 2 * pp; stage s holds layer s in its first chunk and s + 4 in its second -----------------------------


def e_dp(first: int, source: int) -> Carried:
    return over(COALESCED, f"data-parallel group of tp0 pp{first // 2}", f"{first}, {first + 1}", source)


def e_tied(dp: int) -> Carried:
    """The embeddings of stage 0, for the output layer of stage 3."""
    return over(ALLREDUCE, f"pipeline-parallel group of tp0 dp{dp}", f"{dp}, {dp + 6}", dp)


E_BACKWARD = RealFault(
    ("backward_log:3:1:mlp:1",),
    (log_back(3, 1, 1),),
    {1: p2p(3, 1), 0: e_dp(0, 1), 2: e_dp(2, 3), 6: e_tied(0), 7: e_tied(1)},
)
# The second chunk of stage 1, on to stages 2 and 3. Stage 0 gets it in the backward of its second chunk.
E_FORWARD = RealFault(
    ("forward_log:3:5:mlp:3",),
    (log(3, 3, 5),),
    {5: p2p(3, 5), 7: p2p(5, 7), 1: p2p(3, 1), 0: e_dp(0, 1), 2: e_dp(2, 3), 4: e_dp(4, 5), 6: e_dp(6, 7)},
)

# F: rank = dp + 4 * pp; tokens travel inside {0, 1}, {2, 3}, {4, 5}, {6, 7} ------------------------------------------


def f_ep(first: int, source: int) -> Carried:
    return over(ALLTOALL, f"expert-parallel group of tp0 pp{first // 4}", f"{first}, {first + 1}", source)


def f_dp(pp: int, source: int) -> Carried:
    """A whole stage; what is dense is reduced before the experts."""
    return over(COALESCED, f"data-parallel group of tp0 pp{pp}", "0, 1, 2, 3" if pp == 0 else "4, 5, 6, 7", source)


F_REST = {2: f_dp(0, 1), 3: f_dp(0, 1), 6: f_dp(1, 5), 7: f_dp(1, 5)}
F_FORWARD = RealFault(
    ("forward_log:5:2:mlp:3",), (log(5, 3, 2),), {4: f_ep(4, 5), 1: p2p(5, 1), 0: f_ep(0, 1), **F_REST}
)
F_BACKWARD = RealFault(
    ("backward_log:5:3:mlp:0",), (log_back(5, 0, 3),), {4: f_ep(4, 5), 1: p2p(5, 1), 0: f_ep(0, 1), **F_REST}
)
F_ROUTER = RealFault(
    ("wgrad:6:3:mlp.router:2",),
    (log_back(6, 2, 3, "mlp.router"),),
    {4: f_dp(1, 6), 5: f_dp(1, 6), 7: f_dp(1, 6)},
)

# H: rank = tp + 2 * (cp + 2 * dp) -----------------------------------------------------------------------------------


def h_tp(first: int, source: int) -> Carried:
    return over(ALLREDUCE, f"tensor-parallel group of pp0 dp0 cp{first // 2}", f"{first}, {first + 1}", source)


def h_cp(by: str, tp: int, source: int) -> Carried:
    return over(by, f"context-parallel group of tp{tp} pp0 dp0", f"{tp}, {tp + 2}", source)


def h_dp(tp: int) -> Carried:
    ranks = [tp, tp + 2, tp + 4, tp + 6]
    group = f"data- and context-parallel group of tp{tp} pp0"
    return over(COALESCED, group, ", ".join(map(str, ranks)), tp, tp + 2)


H_REST = {4: h_dp(0), 6: h_dp(0), 5: h_dp(1), 7: h_dp(1)}
# Keys and values are gathered over CP before the attention's output is added up over TP.
H_FORWARD = RealFault(
    ("forward_log:3:1:mlp:1",),
    (log(3, 1, 1, length=16),),
    {1: h_cp(GATHERED, 1, 3), 2: h_tp(2, 3), 0: h_tp(0, 1), **H_REST},
)
# First over TP at the input of fc1, so that ranks 2 and 3 are both bad when the gradients of keys and values go back.
H_BACKWARD = RealFault(
    ("backward_log:3:1:mlp:2",),
    (log_back(3, 2, 1),),
    {2: h_tp(2, 3), 0: h_cp(SCATTERED_SEQUENCE, 0, 2), 1: h_cp(SCATTERED_SEQUENCE, 1, 3), **H_REST},
)

HEALTHY_MASK = RealFault(("healthy_mask:-:-:mlp:-", "healthy_mask:-:-:self_attention.core_attention:-"), ())

REAL_FAULTS: Mapping[str, tuple[RealFault, ...]] = {
    "A": (A_FORWARD, A_BACKWARD, HEALTHY_MASK, A_WGRAD, A_COLLECTIVE, A_TWO),
    "AR": (AR_FORWARD, AR_RECOMPUTE, A_BACKWARD),
    "B": (B_BACKWARD, B_WGRAD, B_FORWARD),
    "C": (C_BACKWARD, C_ROUTER, C_FORWARD),
    "D1": (D_FORWARD, D_BACKWARD, HEALTHY_MASK, D_EXP, D_MASKED, D_TRANSIENT, D_WEIGHT),
    "E": (E_BACKWARD, E_FORWARD),
    "F": (F_FORWARD, F_BACKWARD, F_ROUTER),
    "H": (H_FORWARD, H_BACKWARD),
}
"""A bad weight stays bad: that case comes last."""
