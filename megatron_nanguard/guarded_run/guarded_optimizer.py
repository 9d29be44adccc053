"""One optimizer under guard: its chunks, names and place, and what the sentinel saw in the step that is running."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.coordination.voting_ranks import VotingRanks
from megatron_nanguard.device import Device, device_of, training_device
from megatron_nanguard.megatron_api import buffers, host_program, optimizers
from megatron_nanguard.megatron_api.parallel import global_rank, world_size
from megatron_nanguard.megatron_api.protocols import AnyBucketGroup, MegatronOptimizer, ModelChunk
from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.patching import Shield
from megatron_nanguard.policy.deciding import SkipBudget
from megatron_nanguard.policy.scaler import ScalerTally
from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.replay import StepRecorder
from megatron_nanguard.sentinel import AfterReduction, BeforeReduction, Losses, RaisedScale, RngStates, Suspicions
from megatron_nanguard.sentinel.losses import Guarded
from megatron_nanguard.settings import Settings
from megatron_nanguard.topology.coordinates import read as read_coordinates


class GuardedOptimizer:
    """State of one optimizer between two decisions.

    Args:
        optimizer: as the factory returned it; None when only the chunks are known.
        chunks: the model chunks whose gradients it consumes.
        electorate: who votes on it.
        settings: what the user asked for.
        guarded: stands around our work inside the host's loss function.
    """

    def __init__(
        self,
        optimizer: MegatronOptimizer | None,
        chunks: Sequence[ModelChunk],
        electorate: VotingRanks,
        settings: Settings,
        guarded: Guarded = lambda where: nullcontext(),
    ) -> None:
        self.optimizer = optimizer
        self.chunks = list(chunks)
        self.electorate = electorate
        self.before = BeforeReduction(per_parameter=settings.norms == "param")
        self.after = AfterReduction(self.chunks)
        self.losses = Losses(guarded=guarded)
        self._seconds: deque[float] = deque(maxlen=64)
        self._opened = 0.0
        self.tally = ScalerTally(settings.scaler_skips, can_check=settings.replay == "auto")
        self.raised_scale = RaisedScale()
        self.budget = SkipBudget(*settings.max_skips)
        self.rng: RngStates | None = None
        self.step = 0
        self.is_open = False
        """A schedule ran since the last decision."""
        self.norms: list[float | Tensor] = []
        """Gradient norms of the last step that was let through, as the host holds them, the outermost optimizer's last;
        judged at the next vote."""
        self._device = _device_of(self.chunks)
        self.recorder = StepRecorder(self.chunks, self.device) if settings.replay == "auto" else None
        self.why_no_recorder = phrase("switched off (--nanguard-replay off)")
        """Said where ``recorder`` is None."""
        self._groups: set[int] = set()
        self.coordinates, self.sizes = _on_its_own()

    def learn(self) -> None:
        """Read names and place off the chunks. May fail on a Megatron we do not know: the rank votes all the same."""
        self.coordinates, self.sizes = read_coordinates(self.chunks)
        self.names = ParameterMap(self.chunks, self.sizes)

    @property
    def device(self) -> Device:
        return device_of(self._device.type)

    @property
    def torch_device(self) -> torch.device:
        return self._device

    def open(self, schedule: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a step, or begin it again when the host repeats the pass; the keyword arguments to go on with."""
        was_open, self.is_open = self.is_open, True
        if not was_open:
            self.step = host_program.log_step() or self.step + 1
            self._opened = time.monotonic()
        self._groups = {id(group) for chunk in self.chunks for group in buffers.bucket_groups(chunk)}
        self.before.clear()
        self.losses.clear()
        recorded = self._recorded(schedule, kwargs)
        self.rng = self._random_states()
        return {**recorded, "forward_step_func": self.losses.listen(kwargs["forward_step_func"])}

    def _recorded(self, schedule: Callable[..., Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """A host whose state cannot be noted loses the replay, and nothing else."""
        if self.recorder is not None:
            shield = Shield()
            with shield("recording the step"):
                return self.recorder.open(schedule, kwargs)
            self.recorder, self.why_no_recorder = (
                None,
                phrase("the step cannot be recorded ({fault})", fault=shield.fault),
            )
        return kwargs

    def _random_states(self) -> RngStates:
        """Those that the recorder has copied; without a recorder copies of our own."""
        if self.recorder is None or self.recorder.call is None:
            return RngStates.now(self.device)
        return self.recorder.call.snapshot.random

    def close(self) -> None:
        """Forget the step, so that nothing of it is judged or kept alive again."""
        self.is_open = False
        self.rng = None
        self.norms.clear()
        self.before.clear()
        self.losses.clear()
        self._seconds.append(time.monotonic() - self._opened)
        if self.recorder is not None:
            self.recorder.close()

    @property
    def median_seconds(self) -> float:
        """Of the last steps, from the schedule's call to the decision; 0 before the first."""
        return statistics.median(self._seconds) if self._seconds else 0.0

    def suspicions(self, optimizer: MegatronOptimizer) -> Suspicions:
        """Everything that goes into the flags.

        Sync: none.
        """
        self.after.look()
        return Suspicions(
            before=[bucket.norms for bucket in self.before.taken()],
            after=self.after.norms,
            loss=self.losses.bad(),
            last_norms=self.norms,
            dynamic_scale=optimizers.is_dynamic(optimizer),
            minimal_scale=optimizers.scale_is_minimal(optimizer),
            raised_scale=self.raised_scale.look(optimizers.scaler_trackers(optimizer)),
        )

    def holds(self, group: AnyBucketGroup) -> bool:
        """Whether a bucket group is one of this optimizer's, in a step that is open."""
        return self.is_open and id(group) in self._groups

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


def _on_its_own() -> tuple[Coordinates, ParallelSizes]:
    """Place of a rank as long as nothing is known of the layout: one replica among others."""
    rank, world = global_rank(), world_size()
    return Coordinates(rank, 0, 0, 0, rank, 0, 0, rank), ParallelSizes(world, 1, 1, 1, world, 1, 1, world)


def _device_of(chunks: Sequence[ModelChunk]) -> torch.device:
    for chunk in chunks:
        for param in chunk.parameters():
            return param.device
    return torch.device(training_device().backend)
