"""Opened incidents for the tests of the page: the demo with its rows, and a run of sixteen thousand ranks."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

from megatron_nanguard.postmortem.rank_table import RankRow, RankState
from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.incident import Incident, Infected, MergedParameter, MicrobatchLosses
from megatron_nanguard.records.postmortem import Microbatch, RankSets
from megatron_nanguard.report.opened_incident import OpenedIncident
from tests.unit.diagnosis.factories import origin
from tests.unit.factories import PLACES, SETS, SIZES, incident, place

LARGE = ParallelSizes(world=16384, tp=8, cp=1, ep=1, dp=128, pp=16, expert_tp=8, expert_dp=128)
LARGE_LAYERS = 8
"""Layers of one stage."""

STATES = {
    5: RankState.ORIGIN,
    **dict.fromkeys((0, 1, 4), RankState.BAD_BEFORE),
    **dict.fromkeys((2, 3, 6, 7), RankState.INFECTED),
}
TP = "tensor-parallel group of pp1 dp0, ranks 4, 5"
BACKWARD = "backward of micro-batch 2, decoder.layers.1"
INFECTED = (
    Infected(4, "TP all-reduce", TP, (5,), "backward of micro-batch 2, a", "allreduce_ no. 39"),
    Infected(0, "PP recv from rank 4", "rank 4 to rank 0", (4,), BACKWARD),
    Infected(1, "PP recv from rank 5", "rank 5 to rank 1", (5,), BACKWARD),
    Infected(2, "DP gradient all-reduce", "data-parallel group of tp0 pp0, ranks 0, 2", (0,), "finalize"),
)


def row(rank: int, **changes: Any) -> RankRow:
    """A rank of the demo: stage 1 holds layers 2 and 3, replica 0 is bad up to layer 3."""
    facts: dict[str, Any] = {
        "state": STATES[rank],
        "has_file": True,
        "host": "node1",
        "device": "Test CPU",
        "norm": math.nan if PLACES[rank][1] == 0 else 1.5,
        "norm_by_layer": norms(rank),
        "microbatches": tuple(Microbatch(index, 4.5 + index / 8, 64) for index in range(4)) if rank > 3 else (),
    }
    return RankRow(rank=rank, coordinates=place(rank), label=place(rank).label(SIZES), **{**facts, **changes})


def norms(rank: int) -> dict[str, float | None]:
    """Norms of the layers of one rank, NaN on replica 0."""
    _, replica, stage = PLACES[rank]
    layers = ("decoder.layers.2", "decoder.layers.3", "output_layer") if stage else ("embedding", "decoder.layers.0")
    return {layer: math.nan if replica == 0 and layer != "output_layer" else 0.5 + rank / 10 for layer in layers}


def demo_incident(**changes: Any) -> Incident:
    """The incident of the demo with its replay and its causes."""
    parameters = tuple(
        MergedParameter(f"decoder.layers.{layer}.{name}", "local", "nan", math.nan, 3, 0, (4, 5), 2, ("tp0pp1dp0",) * 2)
        for layer in (3, 2)
        for name in ("mlp.linear_fc1.weight", "self_attention.linear_qkv.weight")
    )
    known: dict[str, Any] = {
        "ranks": SETS,
        "origin": (origin(path=("log in decoder.layers.3.mlp", "mul in decoder.layers.3", "add_ in a.weight")),),
        "infected": INFECTED,
        "causes": (RankedCause("numerics", 0.95, ("values outside of its domain",), (), ("a peer",), "halve --lr"),),
        "parameters": parameters,
        "losses": tuple(MicrobatchLosses(index, 4, 4.5, 4.75, ()) for index in range(4)),
    }
    return incident(**{**known, **changes})


def opened_demo(**changes: Any) -> OpenedIncident:
    """The demo with a row per rank."""
    return OpenedIncident(demo_incident(**changes), Path("/data/DIR"), tuple(map(row, range(8))))


@functools.cache
def opened_large_run() -> OpenedIncident:
    """Sixteen thousand ranks: rank 5000 is the origin, its replica is bad up to its stage, all others are infected."""
    rows = tuple(map(_large_row, range(LARGE.world)))
    bad = tuple(one.rank for one in rows if one.state in (RankState.ORIGIN, RankState.BAD_BEFORE))
    after = tuple(one.rank for one in rows if one.state is RankState.INFECTED)
    sets = RankSets(bad_before=bad, bad_after_only=after, clean=())
    begun = origin(rank=5000, coords=rows[5000].label, ranks=())
    return OpenedIncident(demo_incident(sizes=LARGE, ranks=sets, origin=(begun,), infected=()), Path("/data/DIR"), rows)


def _large_row(rank: int) -> RankRow:
    spot = Coordinates.in_default_order(rank, LARGE)
    begun = Coordinates.in_default_order(5000, LARGE)
    is_bad = spot.dp == begun.dp and spot.pp <= begun.pp
    state = RankState.ORIGIN if rank == 5000 else RankState.BAD_BEFORE if is_bad else RankState.INFECTED
    layers = range(spot.pp * LARGE_LAYERS, (spot.pp + 1) * LARGE_LAYERS)
    return RankRow(
        rank=rank,
        coordinates=spot,
        label=spot.label(LARGE),
        state=state,
        has_file=True,
        host=f"node{rank // 8}",
        device=f"NVIDIA H200 ({rank % 8})",
        norm=math.nan if is_bad else 1.5,
        norm_by_layer={f"decoder.layers.{layer}": math.nan if is_bad else 1.0 + rank % 7 for layer in layers},
        microbatches=tuple(Microbatch(index, 2.5 + rank % 5, 4096) for index in range(16)) if spot.pp == 15 else (),
    )
