"""The place of a rank in the parallel layout, and a set of ranks as index sets per axis.

The axes are tp, cp, ep, dp, pp, fastest first in Megatron's default order; expert ranks (ep) are folded out of dp.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ParallelSizes:
    """How many ranks each parallel axis has.

    Attributes:
        world: ranks of the run.
        tp: tensor parallel size.
        cp: context parallel size.
        ep: expert parallel size; ranks of one expert group are neighbours inside dp.
        dp: data parallel size, context parallel ranks not counted.
        pp: pipeline parallel size.
        expert_tp: tensor parallel size inside the experts.
        expert_dp: replicas of one expert.
        vpp: model chunks on a rank; more than one under virtual pipelining.
    """

    world: int
    tp: int
    cp: int
    ep: int
    dp: int
    pp: int
    expert_tp: int
    expert_dp: int
    vpp: int = 1


@dataclass(frozen=True)
class Coordinates:
    """The place of one rank, zero-based on every axis.

    Attributes:
        rank: global rank.
        tp: tensor parallel rank.
        cp: context parallel rank.
        ep: expert parallel rank.
        dp: data parallel rank, context parallel ranks not counted.
        pp: pipeline stage.
        expert_tp: tensor parallel rank inside the experts.
        expert_dp: which replica of its experts the rank holds.
    """

    rank: int
    tp: int
    cp: int
    ep: int
    dp: int
    pp: int
    expert_tp: int
    expert_dp: int

    @classmethod
    def in_default_order(cls, rank: int, sizes: ParallelSizes) -> Coordinates:
        """The place of a rank if the run used Megatron's default order of axes (tp-cp-ep-dp-pp).

        Source: megatron/core/parallel_state.py, initialize_model_parallel
        """
        stage, dense = divmod(rank, sizes.tp * sizes.cp * sizes.dp)
        expert = dense // sizes.expert_tp
        return cls(
            rank=rank,
            tp=dense % sizes.tp,
            cp=dense // sizes.tp % sizes.cp,
            ep=expert % sizes.ep,
            dp=dense // (sizes.tp * sizes.cp),
            pp=stage,
            expert_tp=dense % sizes.expert_tp,
            expert_dp=expert // sizes.ep,
        )

    def label(self, sizes: ParallelSizes) -> str:
        """Name the place in a word that fits a file name: `tp0pp1dp0`, then `cp0` and `ep1` where these axes exist."""
        context = f"cp{self.cp}" if sizes.cp > 1 else ""
        expert = f"ep{self.ep}" if sizes.ep > 1 else ""
        return f"tp{self.tp}pp{self.pp}dp{self.dp}{context}{expert}"


@dataclass(frozen=True)
class RankGroup:
    """A set of ranks that is a product of index sets, one per axis.

    Attributes:
        axis: the axes on which the set is not everything, joined by "+"; empty for all ranks.
        indices: the index set of each named axis.
        words: the set as a person says it, such as "data-parallel replica 0: all TP, all PP".
        ranks: the global ranks of the set, ascending.
    """

    axis: str
    indices: dict[str, tuple[int, ...]]
    words: str
    ranks: tuple[int, ...]
