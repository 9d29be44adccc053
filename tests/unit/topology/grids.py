"""Whole layouts as records, by the rank order that Megatron has by default: tp, cp, ep, dp, pp."""

from __future__ import annotations

from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes


def layout(*, tp: int = 1, cp: int = 1, dp: int = 1, pp: int = 1, ep: int = 1) -> ParallelSizes:
    return ParallelSizes(
        world=tp * cp * dp * pp, tp=tp, cp=cp, ep=ep, dp=dp, pp=pp, expert_tp=tp, expert_dp=cp * dp // ep
    )


def everyone(sizes: ParallelSizes) -> dict[int, Coordinates]:
    """Coordinates of all ranks: rank = tp + TP * (cp + CP * (dp + DP * pp)); EP is folded out of CP and DP."""
    places = {}
    for rank in range(sizes.world):
        rest, tp = divmod(rank, sizes.tp)
        pp, replica = divmod(rest, sizes.cp * sizes.dp)
        dp, cp = divmod(replica, sizes.cp)
        expert_dp, ep = divmod(replica, sizes.ep)
        places[rank] = Coordinates(rank, tp, cp, ep, dp, pp, tp, expert_dp)
    return places
