"""One optimizer under guard: its chunks and their names, the ranks that vote on it, its drills and watched modules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from megatron_nanguard.coordination.voting_ranks import VotingRanks
from megatron_nanguard.device import Device, device_of, training_device
from megatron_nanguard.drill.planted_drills import PlantedDrills
from megatron_nanguard.guarded_run.guarded_step import GuardedStep
from megatron_nanguard.megatron_api import buffers, optimizers
from megatron_nanguard.megatron_api.parallel import global_rank, world_size
from megatron_nanguard.megatron_api.protocols import AnyBucketGroup, MegatronOptimizer, ModelChunk
from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.policy.deciding import PASS, SkipBudget
from megatron_nanguard.policy.scaler import ScalerTally
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.settings import Settings
from megatron_nanguard.topology.coordinates import read as read_coordinates
from megatron_nanguard.watching.watcher import Watcher


class GuardedOptimizer:
    """What the guard holds of one optimizer.

    Args:
        optimizer: as the factory returned it; None when only the chunks are known.
        chunks: the model chunks whose gradients it consumes.
        voting_ranks: the ranks that decide together about its steps.
        settings: what the user asked for.
        shield: keeps faults of ours out of training.
    Attributes:
        coordinates, sizes: place of this rank in the parallel layout; one replica among others before `learn`.
        names: global names of the parameters; missing before `learn`.
        step: the step that is running.
        tally: skips of the loss scaler.
        budget: how many steps policy skip may skip.
        decision: about the last step.
        drills: faults planted into its model on purpose; without drills, none.
        watcher: of `--nanguard-watch`; None where no module is watched.
    """

    names: ParameterMap

    def __init__(
        self,
        optimizer: MegatronOptimizer | None,
        chunks: Sequence[ModelChunk],
        voting_ranks: VotingRanks,
        settings: Settings,
        shield: Shield,
    ) -> None:
        self.optimizer = optimizer
        self.chunks = list(chunks)
        self.voting_ranks = voting_ranks
        self.torch_device = _device_of(self.chunks)
        self.coordinates, self.sizes = _single_replica()
        self.step = GuardedStep(self.chunks, self.device, settings, shield)
        self.tally = ScalerTally(settings.scaler_skips, can_check=settings.replay == "auto")
        self.budget = SkipBudget(*settings.max_skips)
        self.decision = PASS
        self.drills = PlantedDrills((), self.coordinates.rank)
        self.watcher: Watcher | None = None

    def learn(self) -> None:
        """Read names and coordinates off the chunks. May fail on an unknown Megatron; the rank votes all the same."""
        self.coordinates, self.sizes = read_coordinates(self.chunks)
        self.names = ParameterMap(self.chunks, self.sizes)

    @property
    def device(self) -> Device:
        return device_of(self.torch_device.type)

    def owns(self, chunk: ModelChunk) -> bool:
        """Whether a chunk is one of this optimizer's."""
        return any(chunk is mine for mine in self.chunks)

    def clip_coefficient(self, norm: float | None) -> float | None:
        """What Megatron would multiply the gradients with; None without a norm or without clipping.

        Source: megatron/core/optimizer/clip_grads.py, clip_grad_by_total_norm_fp32
        """
        threshold = optimizers.clip_threshold(self.optimizer)
        if norm is None or not threshold:
            return None
        coefficient = threshold / (norm + 1e-6)
        return coefficient if math.isnan(coefficient) else min(coefficient, 1.0)

    # ---------------------------------------------------------------- the moments of a step

    def begin_passes(self) -> None:
        """Start drills and watched modules, when the step is open and before its first forward."""
        self.drills.step_begins(self.step.number)
        if self.watcher is not None:
            self.watcher.step_begins(self.step.number)

    def before_reduction(self, group: AnyBucketGroup, force_all_reduce: bool) -> None:
        """Let drills at a bucket group that is about to be reduced, then take its norms."""
        if self.drills.drills:
            for bucket in buffers.buckets(group):
                self.drills.before_reduction(bucket.params_list)
        self.step.before.look(group, force_all_reduce)

    def after_reduction(self) -> None:
        """Let drills at the reduced gradients, before the sentinel looks at them."""
        self.drills.after_reduction()

    def end_passes(self) -> None:
        """Stop watching modules, when the forwards and backwards of the step are over: a replay must not be watched."""
        if self.watcher is not None:
            self.watcher.step_ends()

    @contextmanager
    def drills_again(self) -> Iterator[None]:
        """Around each pass of a replay: the drills of the step fire again, as a real fault would."""
        self.drills.step_begins(self.step.number)
        yield
        self.after_reduction()

    def detach(self) -> None:
        """Remove every hook of ours from the model."""
        self.drills.detach()
        self.end_passes()


def _single_replica() -> tuple[Coordinates, ParallelSizes]:
    """Coordinates of a rank as long as nothing is known of the layout: one replica among others."""
    rank, world = global_rank(), world_size()
    return Coordinates(rank, 0, 0, 0, rank, 0, 0, rank), ParallelSizes(world, 1, 1, 1, world, 1, 1, world)


def _device_of(chunks: Sequence[ModelChunk]) -> torch.device:
    for chunk in chunks:
        for param in chunk.parameters():
            return param.device
    return torch.device(training_device().backend)
