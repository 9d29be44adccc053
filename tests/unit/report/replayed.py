"""One incident with everything that a replay can find: the demo of the factories with a `log` on rank 5 as origin."""

from __future__ import annotations

import math
from typing import Final

from megatron_nanguard.diagnosis.advice import advise
from megatron_nanguard.diagnosis.verdict import verdict
from megatron_nanguard.records.incident import Infected, MergedParameter, MicrobatchLosses
from megatron_nanguard.records.step.replay import ReplayPass, ReplaySummary
from megatron_nanguard.report.opened_incident import OpenedIncident
from tests.unit.diagnosis.factories import arbitration, case, origin
from tests.unit.factories import REPLICA_0, REPLICA_1, SETS
from tests.unit.report.factories import DEMO, opened_incident, row

DP: Final = "data-parallel group of tp{} pp{}, ranks {}, {}"
INFECTED: Final = (
    Infected(4, "TP all-reduce", "tensor-parallel group of pp1 dp0, ranks 4, 5", (5,), "backward, final_layernorm"),
    Infected(1, "PP recv from rank 5", "rank 5 to rank 1", (5,), "backward of micro-batch 2, decoder.layers.1"),
    Infected(0, "PP recv from rank 4", "rank 4 to rank 0", (4,), "backward of micro-batch 2, decoder.layers.1"),
    Infected(2, "DP gradient all-reduce", DP.format(0, 0, 0, 2), (0,)),
    Infected(3, "DP gradient all-reduce", DP.format(1, 0, 1, 3), (1,)),
    Infected(6, "DP gradient all-reduce", DP.format(0, 1, 4, 6), (4,)),
    Infected(7, "DP gradient all-reduce", DP.format(1, 1, 5, 7), (5,)),
)
FOUND: Final = case(
    audited=True,
    origin=(origin(path=("log in decoder.layers.3.mlp", "mul in decoder.layers.3.mlp")),),
    passes=(ReplayPass("plain", "yes"), ReplayPass("traced", "yes")),
    exact=True,
    arbitrations=(arbitration(repeats=8, repeats_bad=8, peer="bad", reference_fp64="bad"),),
)
PARAMETERS: Final = tuple(
    MergedParameter(f"decoder.layers.{layer}.mlp.linear_fc1.weight", "local", "nan", math.nan, None, None, ranks, 2, ())
    for layer, ranks in ((3, (4, 5)), (2, (4, 5)), (1, (0, 1)), (0, (0, 1)))
)


def _norms(rank: int) -> dict[str, float | None]:
    """Stage 0 holds layers 0 and 1, stage 1 the others; replica 0 is bad up to layer 3."""
    norm = 0.5 if rank in SETS.bad_after_only else math.nan
    if rank in (0, 1, 2, 3):
        return {"embedding": 0.125, "decoder.layers.0": norm, "decoder.layers.1": norm}
    return {"decoder.layers.2": norm, "decoder.layers.3": norm / 16, "output_layer": 0.03125}


REPLAYED: Final[OpenedIncident] = opened_incident(
    rows=[row(rank, state, norm_by_layer=_norms(rank)) for rank, state in DEMO.items()],
    ranks=SETS,
    groups=(REPLICA_0,),
    infected_groups=(REPLICA_1,),
    origin=FOUND.incident.origin,
    infected=INFECTED,
    causes=verdict(FOUND),
    advice=advise(FOUND),
    arbitrations=FOUND.incident.arbitrations,
    parameters=PARAMETERS,
    losses=(MicrobatchLosses(1, 4, 10.25, 10.5, ()), MicrobatchLosses(2, 4, 10.125, 10.75, ())),
    replay=ReplaySummary(
        True, "", True, stages=("plain: 0.34 s", "traced, micro-batch 2: 0.90 s"), passes=FOUND.incident.replay.passes
    ),
    notes=("rank 3: a note that only this rank has",),
)
