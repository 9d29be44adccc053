"""Post-mortems of a run of 16,384 ranks, for timings: `python scripts/many_ranks.py DIR [STAGE]`.

TP8 PP16 DP128, 96 layers. One rank of a pipeline stage makes a NaN in backward: its tensor-parallel peers and the
stages before it are bad before the reduction, other replicas of these stages are infected, stages after it are clean.
A clean rank writes about 4 KiB, an infected one about 30 KiB, one that was bad itself about 200 KiB.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from megatron_nanguard.postmortem.limits import cut_to_limit
from megatron_nanguard.postmortem.run_directory import postmortem_name
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes, RankGroup
from megatron_nanguard.records.json.record_file import to_json
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

TP, PP, DP = 8, 16, 128
SIZES = ParallelSizes(world=TP * PP * DP, tp=TP, cp=1, ep=1, dp=DP, pp=PP, expert_tp=TP, expert_dp=DP)
LAYERS_PER_STAGE = 6
REPLICA = 77
ALL_STAGES = PP - 1
PARAMETERS = (
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.q_layernorm.weight",
    "self_attention.k_layernorm.weight",
    "self_attention.linear_proj.weight",
    "self_attention.linear_proj.bias",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc1.bias",
    "mlp.linear_fc2.weight",
    "mlp.linear_fc2.bias",
)
NUM_MICROBATCHES = 16
GPUS_PER_HOST = 8
CARD = DeviceFacts("cuda", 0, "H200", "not_applicable", 150 * 2**30, {"driver": "570.00"})


def place(rank: int) -> Coordinates:
    """Where a rank stands: tp fastest, then dp, then pp."""
    tp, dp, pp = rank % TP, rank // TP % DP, rank // (TP * DP)
    return Coordinates(rank, tp, 0, 0, dp, pp, tp, dp)


def sets(stage: int) -> RankSets:
    """All ranks by what happens to them when the fault lies on a pipeline stage."""
    fates: dict[str, list[int]] = {"bad_before": [], "bad_after_only": [], "clean": []}
    for rank in range(SIZES.world):
        where = place(rank)
        reached = "bad_before" if where.dp == REPLICA else "bad_after_only"
        fates[reached if where.pp <= stage else "clean"].append(rank)
    return RankSets(**{fate: tuple(ranks) for fate, ranks in fates.items()})


def postmortems(stage: int) -> Iterator[Postmortem]:
    """What each rank writes, in the order of ranks."""
    ranks = sets(stage)
    fates = {rank: fate for fate, members in vars(ranks).items() for rank in members}
    patterns: dict[tuple[int, str], Postmortem] = {}
    for rank in range(SIZES.world):
        where = place(rank)
        key = where.pp, fates[rank]
        if key not in patterns:
            patterns[key] = cut_to_limit(_postmortem(where, stage, ranks, is_bad=key[1] == "bad_before"))
        host, index = f"node{rank // GPUS_PER_HOST:04d}", rank % GPUS_PER_HOST
        yield replace(patterns[key], coordinates=where, host=host, pid=1000 + rank, device=replace(CARD, index=index))


def write(directory: Path, stage: int = ALL_STAGES) -> int:
    """Write the files of all ranks into an incident directory; gives back their bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    total = 0
    for record in postmortems(stage):
        content = to_json(record)
        total += (directory / postmortem_name(record)).write_bytes(content)
    return total


def _postmortem(where: Coordinates, stage: int, ranks: RankSets, is_bad: bool) -> Postmortem:
    is_reached = where.pp <= stage
    bad = tuple(_bad(name) for name in _names(where.pp)) if is_reached else ()
    norms: dict[str, float | None] = dict.fromkeys(_layers(where.pp), math.nan if is_bad else 0.0123456)
    by_layer = {layer: len(PARAMETERS) for layer in norms} if is_bad else {}
    last = where.pp == PP - 1
    words = f"data-parallel replica {REPLICA}: all TP, pipeline stages 0 to {stage}"
    return Postmortem(
        run_id="20260101T120000Z-ab12",
        step=123,
        kind=Kind.GRADIENT_BEFORE_REDUCTION,
        phase="complete",
        coordinates=where,
        sizes=SIZES,
        host="",
        pid=0,
        device=CARD,
        microbatches=tuple(Microbatch(index, 2.5 if last else None, 4096) for index in range(NUM_MICROBATCHES)),
        local=LocalGradients(math.nan if is_bad else 0.5, bad if is_bad else (), by_layer, 0, norms),
        reduced=ReducedState(math.nan if is_reached else 0.5, 12, bad, 0),
        grad_norm=None,
        clip_coefficient=None,
        loss_scale=None,
        rng=RngDigests("a1" * 8, "b2" * 8, "c3" * 8, "d4" * 8, {"model-parallel-rng": "e5" * 8}),
        flags=Flags(local=is_bad, reduced=is_reached, loss=False, own_fault=False, dead_step=False),
        ranks=ranks,
        groups=(RankGroup("dp+pp", {"dp": (REPLICA,), "pp": tuple(range(stage + 1))}, words, ranks.bad_before),),
        policy="abort",
        versions={"megatron-core": "0.19.2", "torch": "2.14.0"},
    )


def _layers(stage: int) -> list[str]:
    return [f"decoder.layers.{stage * LAYERS_PER_STAGE + index}" for index in range(LAYERS_PER_STAGE)]


def _names(stage: int) -> list[str]:
    return [f"{layer}.{name}" for layer in _layers(stage) for name in PARAMETERS]


def _bad(name: str) -> BadParameter:
    return BadParameter(name, f"module.module.{name}", (4096, 1024), math.nan, "nan", None, None, None, None)


def main() -> None:
    """Write the files of one incident."""
    if len(sys.argv) < 2:
        sys.exit("usage: python scripts/many_ranks.py DIR [STAGE]")
    stage = int(sys.argv[2]) if len(sys.argv) > 2 else ALL_STAGES
    print(f"{write(Path(sys.argv[1]), stage) / 2**20:.0f} MiB in {sys.argv[1]}")


if __name__ == "__main__":
    main()
