"""Keep the schedule call of the current step with all that is needed to make it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megatron_nanguard.device import Device
from megatron_nanguard.megatron_api.buffers import gradient_tensors
from megatron_nanguard.megatron_api.protocols import ModelChunk, Schedule, ScheduleArguments
from megatron_nanguard.records.phrase import phrase
from megatron_nanguard.replay.data_iterators import Batch, Recording, vars_of
from megatron_nanguard.replay.snapshot import Snapshot
from megatron_nanguard.tensor_names import named_tensors


@dataclass
class RecordedCall:
    """One call of a pipeline schedule, with all that is needed to make it again.

    Attributes:
        schedule: the schedule function, unwrapped.
        kwargs: its arguments, with recording data iterators.
        chunks: the model chunks.
        device: of the model.
        grad_mode: whether autograd was on when it was called.
        snapshot: the state when it was called.
        recording: its micro-batches.
        carried_over: int64 [], number of gradient elements that were not zero when it was called; None for the first
            call of a step.
    """

    schedule: Schedule
    kwargs: ScheduleArguments
    chunks: Sequence[ModelChunk]
    device: Device
    grad_mode: bool
    snapshot: Snapshot
    recording: Recording
    carried_over: Tensor | None

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of the step."""
        return int(self.kwargs["num_microbatches"])

    def why_not(self) -> str:
        """Why the call cannot be made again on this rank; empty when it can.

        Sync: one host read, where the host called the schedule more than once.
        """
        if why_not := self.recording.why_not():
            return why_not
        if not gradient_tensors(self.chunks):
            return phrase("the gradients of this model are in no buffer that can be emptied and compared (FSDP)")
        if self.carried_over is not None and int(self.carried_over):
            return phrase(
                "the host calls the schedule several times per step without emptying the gradients in between"
            )
        return ""


class StepRecorder:
    """Record the schedule calls of one optimizer, and keep the batch of the last good step.

    Args:
        chunks: the model chunks of the optimizer.
        device: of the model.
    Attributes:
        call: the last call of the current step; None where Python made none, as in a full-iteration CUDA graph.
        previous: the batch of the last step that was no incident.
    """

    def __init__(self, chunks: Sequence[ModelChunk], device: Device) -> None:
        self._chunks = chunks
        self._device = device
        self.call: RecordedCall | None = None
        self.previous: Batch | None = None

    def open(self, schedule: Schedule, kwargs: ScheduleArguments) -> dict[str, Any]:
        """Record a call that is about to be made.

        Returns:
            The keyword arguments to make it with: the data iterators are wrapped.
        Sync: none.
        """
        recording = Recording(kwargs["data_iterator"])
        recorded = {**kwargs, "data_iterator": recording.data_iterator}
        self.call = RecordedCall(
            schedule=schedule,
            kwargs=recorded,
            chunks=self._chunks,
            device=self._device,
            grad_mode=torch.is_grad_enabled(),
            snapshot=Snapshot.capture(self._chunks, self._device),
            recording=recording,
            carried_over=None if self.call is None else _num_nonzero(gradient_tensors(self._chunks)),
        )
        return recorded

    @property
    def previous_fits(self) -> bool:
        """Whether the last good step's batch has the shapes of this step's, so that a replay can use it instead."""
        if self.previous is None or self.call is None:
            return False
        return _form(self.previous) == _form(self.call.recording.batch())

    def discard(self) -> None:
        """Drop the call of a bad step; its batch does not become `previous`."""
        self.call = None

    def close(self) -> None:
        """Drop the call after the step was decided: from here on it must not be replayed."""
        if self.call is not None:
            self.previous = self.call.recording.batch()
        self.call = None


def _form(batch: Batch) -> list[list[list[tuple[str, torch.Size]]]]:
    """Names and shapes of all tensors. The shapes that pipeline stages exchange follow from these."""
    return [[_shapes(item) for item in items] for items in batch]


def _shapes(item: object) -> list[tuple[str, torch.Size]]:
    return [(name, tensor.shape) for name, tensor in named_tensors(item, vars_of)]


@torch.no_grad()
def _num_nonzero(tensors: Sequence[Tensor]) -> Tensor | None:
    return torch.stack([tensor.count_nonzero() for tensor in tensors]).sum() if tensors else None
