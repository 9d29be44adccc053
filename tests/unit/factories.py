"""Records for tests: every factory makes a complete one, and takes what a test wants different.

The run is layout A, TP2 PP2 DP2 on 8 ranks: rank = tp + 2 * (dp + 2 * pp). Its drill is the one of `nanguard demo`: a
NaN in the backward of layer 3 on rank 5, so that replica 0 is bad before the reduction and replica 1 infected by it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes, RankGroup
from megatron_nanguard.records.incident import Incident, PolicyOutcome
from megatron_nanguard.records.machine.device import DeviceFacts
from megatron_nanguard.records.postmortem import (
    BadParameter,
    Flags,
    Kind,
    LocalGradients,
    Microbatch,
    Postmortem,
    RankSets,
    ReducedState,
    RngDigests,
)
from megatron_nanguard.records.run.fingerprint import Fingerprint
from megatron_nanguard.records.step.capture import CaptureFile

SIZES = ParallelSizes(world=8, tp=2, cp=1, ep=1, dp=2, pp=2, expert_tp=2, expert_dp=2)

# rank: (tp, dp, pp), by hand
PLACES = {
    0: (0, 0, 0),
    1: (1, 0, 0),
    2: (0, 1, 0),
    3: (1, 1, 0),
    4: (0, 0, 1),
    5: (1, 0, 1),
    6: (0, 1, 1),
    7: (1, 1, 1),
}
SETS = RankSets(bad_before=(0, 1, 4, 5), bad_after_only=(2, 3, 6, 7), clean=())
REPLICA_0 = RankGroup("dp", {"dp": (0,)}, "data-parallel replica 0: all TP, all PP", (0, 1, 4, 5))
REPLICA_1 = RankGroup("dp", {"dp": (1,)}, "data-parallel replica 1: all TP, all PP", (2, 3, 6, 7))
ABORT = PolicyOutcome("abort", "abort", 65, "all ranks left with exit code 65 before any weight changed")
CPU = DeviceFacts("cpu", None, "Test CPU", "not_applicable", None, {})
NO_FLAGS = Flags(local=False, reduced=False, loss=False, own_fault=False, dead_step=False)
FINITE_LOCAL = LocalGradients(norm=1.5, parameters=(), by_layer={}, truncated=0)
FINITE_REDUCED = ReducedState(norm=1.25, pieces=1, parameters=(), truncated=0)


def place(rank: int) -> Coordinates:
    """Coordinates of a rank in layout A."""
    tp, dp, pp = PLACES[rank]
    return Coordinates(rank, tp, 0, 0, dp, pp, tp, dp)


def bad_parameter(name: str, **changes: Any) -> BadParameter:
    """A parameter with 3 NaN among 64 elements, counted before the reduction overwrote them."""
    entry = BadParameter(name, name, (8, 8), math.nan, "nan", 3, 0, 64, (2, 5))
    return replace(entry, **changes)


def postmortem(rank: int, **changes: Any) -> Postmortem:
    """A clean rank of layout A."""
    losses = (10.5, 10.25) if PLACES[rank][2] == 1 else (None, None)
    record = Postmortem(
        run_id="20260101-120000-ab12",
        step=3,
        kind=Kind.GRADIENT_BEFORE_REDUCTION,
        phase="complete",
        coordinates=place(rank),
        sizes=SIZES,
        host="node1",
        pid=4000 + rank,
        device=CPU,
        microbatches=tuple(Microbatch(index, loss, 64) for index, loss in enumerate(losses)),
        local=FINITE_LOCAL,
        reduced=FINITE_REDUCED,
        grad_norm=None,
        clip_coefficient=None,
        loss_scale=None,
        rng=RngDigests("a1", "b2", "c3", "d4", {"model-parallel-rng": "e5"}),
        flags=NO_FLAGS,
        ranks=SETS,
        groups=(REPLICA_0,),
        infected_groups=(REPLICA_1,),
        policy="abort",
        versions={"megatron-core": "0.19.2", "torch": "2.14.0"},
    )
    return replace(record, **changes)


def demo_postmortem(rank: int) -> Postmortem:
    """One rank of the demo: stage 1 holds layers 2 and 3, the walk back ends at the embedding of stage 0."""
    layers = (2, 3) if PLACES[rank][2] == 1 else (0, 1)
    names = [f"decoder.layers.{layer}.mlp.linear_fc1.weight" for layer in layers]
    if PLACES[rank][2] == 0:
        names.insert(0, "embedding.word_embeddings.weight")
    bad = tuple(bad_parameter(name, nan_count=None, inf_count=None, counted_elements=None) for name in names)
    reduced = ReducedState(math.nan, 1, bad, 0)
    if rank in SETS.bad_before:
        by_layer = {f"decoder.layers.{layer}": 1 for layer in layers}
        local = LocalGradients(math.nan, bad, by_layer, 0)
        return postmortem(rank, local=local, reduced=reduced, flags=replace(NO_FLAGS, local=True, reduced=True))
    return postmortem(rank, reduced=reduced, flags=replace(NO_FLAGS, reduced=True))


def incident(**changes: Any) -> Incident:
    """The smallest incident: sets and policy, and nothing else known."""
    record = Incident(
        run_id="20260101-120000-ab12",
        step=3,
        kind=Kind.GRADIENT_BEFORE_REDUCTION,
        summary="Step 3: something was not finite.",
        ranks=RankSets((), (), ()),
        sizes=SIZES,
        groups=(),
        infected_groups=(),
        policy=ABORT,
    )
    return replace(record, **changes)


def fingerprint(**changes: Any) -> Fingerprint:
    """A run of 8 ranks of which nothing else is known."""
    record = Fingerprint(
        run_id="20260101-120000-ab12",
        started="2026-01-01T12:00:00Z",
        world_size=8,
        versions={},
        arguments={},
        environment={},
        kernel_backends={},
        host_changes=(),
    )
    return replace(record, **changes)


def capture_file(rank: int = 5, **changes: Any) -> CaptureFile:
    """The record of a rank's capture at level `full`, with nothing saved."""
    record = CaptureFile(step=3, coordinates=place(rank), sizes=SIZES, level="full", num_microbatches=2)
    return replace(record, **changes)
