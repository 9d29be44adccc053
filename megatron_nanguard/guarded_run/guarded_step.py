"""One training step of a guarded optimizer, from the call of the pipeline schedule to the decision about the step."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from megatron_nanguard.device import Device
from megatron_nanguard.megatron_api import buffers, host_program, optimizers
from megatron_nanguard.megatron_api.protocols import (
    AnyBucketGroup,
    MegatronOptimizer,
    ModelChunk,
    Schedule,
    ScheduleArguments,
)
from megatron_nanguard.patching.shield import Shield
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.replay.step_recorder import StepRecorder
from megatron_nanguard.sentinel.gradient_norms import AfterReduction, BeforeReduction
from megatron_nanguard.sentinel.losses import Losses
from megatron_nanguard.sentinel.random_states import RngStates
from megatron_nanguard.sentinel.vote_flags import FlagInputs, RaisedScale
from megatron_nanguard.settings import Settings


class GuardedStep:
    """The step that is running: what the sentinel saw of it, and what a replay needs to make it again.

    One object per optimizer; `open` begins a step and `close` forgets it.

    Args:
        chunks: the model chunks of the optimizer.
        device: where they live.
        shield: keeps a fault of ours inside the host's loss function out of training.
    Attributes:
        number: of the step, as the training log counts.
        is_open: a schedule has run since the last decision.
        before: norms of the gradients before the data-parallel reduction.
        after: norms of what the optimizer will consume.
        losses: of the micro-batches.
        norms: gradient norms of the last step that was applied, as the host holds them, that of the outermost optimizer
            last. They are judged at the next vote.
        rng: random states at the entry of the schedule.
        recorder: keeps the schedule's call for a replay; None where there can be no replay.
        why_no_recorder: the reason, where `recorder` is None.
    """

    def __init__(self, chunks: Sequence[ModelChunk], device: Device, settings: Settings, shield: Shield) -> None:
        self._chunks, self._device = chunks, device
        self.number = 0
        self.is_open = False
        self.before = BeforeReduction(per_parameter=settings.norms == "param")
        self.after = AfterReduction(chunks)
        self.losses = Losses(guarded=shield)
        self.norms: list[float | Tensor] = []
        self.rng: RngStates | None = None
        self.recorder = StepRecorder(chunks, device) if settings.replay == "auto" else None
        self.why_no_recorder = phrase("switched off (--nanguard-replay off)")
        self._raised_scale = RaisedScale()
        self._bucket_groups: set[int] = set()
        self._opened = 0.0
        self._seconds: deque[float] = deque(maxlen=64)

    def open(self, schedule: Schedule, kwargs: ScheduleArguments) -> dict[str, Any]:
        """Begin a step, or begin it again when the host repeats the pass.

        Args:
            schedule: the schedule function, unwrapped.
            kwargs: its arguments.
        Returns:
            The arguments to call it with: data iterators that record, a loss function that reports its losses.
        """
        was_open, self.is_open = self.is_open, True
        if not was_open:
            self.number = host_program.log_step() or self.number + 1
            self._opened = time.monotonic()
        self._bucket_groups = {id(group) for chunk in self._chunks for group in buffers.bucket_groups(chunk)}
        self.before.clear()
        self.losses.clear()
        recorded = self._recorded(schedule, kwargs)
        self.rng = self._random_states()
        return {**recorded, "forward_step_func": self.losses.listen(kwargs["forward_step_func"])}

    def _recorded(self, schedule: Schedule, kwargs: ScheduleArguments) -> ScheduleArguments:
        """Record the call. Where that fails, this run has no replay; everything else goes on."""
        if self.recorder is not None:
            shield = Shield()
            with shield("recording the step"):
                return self.recorder.open(schedule, kwargs)
            self.recorder = None
            self.why_no_recorder = phrase("the step cannot be recorded ({fault})", fault=shield.fault)
        return kwargs

    def _random_states(self) -> RngStates:
        """The states that the recorder has copied; without a recorder a copy made here."""
        if self.recorder is None or self.recorder.call is None:
            return RngStates.now(self._device)
        return self.recorder.call.snapshot.random

    def close(self) -> None:
        """Forget the step, so that nothing of it is judged a second time or kept alive."""
        self.is_open = False
        self.rng = None
        self.norms.clear()
        self.before.clear()
        self.losses.clear()
        self._seconds.append(time.monotonic() - self._opened)
        if self.recorder is not None:
            self.recorder.close()

    @contextmanager
    def fresh_norms(self) -> Iterator[BeforeReduction]:
        """Around one pass of a replay: its norms before the reduction go elsewhere, those of the step stay as they are.

        Yields:
            Where the norms of the pass go.
        """
        of_step, self.before = self.before, BeforeReduction(per_parameter=self.before.per_parameter)
        try:
            yield self.before
        finally:
            self.before = of_step

    @property
    def median_seconds(self) -> float:
        """Median duration of the last steps, from the schedule's call to the decision; 0 before the first."""
        return statistics.median(self._seconds) if self._seconds else 0.0

    def holds(self, group: AnyBucketGroup) -> bool:
        """Whether this step is open and the bucket group is one of its optimizer."""
        return self.is_open and id(group) in self._bucket_groups

    def flag_inputs(self, optimizer: MegatronOptimizer) -> FlagInputs:
        """Collect everything that goes into the flags of the vote.

        Args:
            optimizer: the outermost optimizer that asks for the decision.
        Sync: none.
        """
        self.after.look()
        return FlagInputs(
            before=[bucket.norms for bucket in self.before.taken()],
            after=self.after.norms,
            loss=self.losses.bad(),
            last_norms=self.norms,
            dynamic_scale=optimizers.is_dynamic(optimizer),
            minimal_scale=optimizers.scale_is_minimal(optimizer),
            raised_scale=self._raised_scale.look(optimizers.scaler_trackers(optimizer)),
        )
