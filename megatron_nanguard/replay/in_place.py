"""The recorded call again, in place: same state, same data, gradients emptied; then back to the decision point.

point = DecisionPoint.take(call)
first = replay(call, after_backward=first_bad.look)
exact = point.compare(first)
point.put_back()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from megatron_nanguard.megatron_api.bucket_state import weights_stay, zero_gradients
from megatron_nanguard.megatron_api.process_state import rerun_machine_off
from megatron_nanguard.megatron_api.schedules import Around, followed
from megatron_nanguard.replay.data_iterators import Batch
from megatron_nanguard.replay.digests import Digests
from megatron_nanguard.replay.gradient_copy import GradientCopy
from megatron_nanguard.replay.snapshot import Snapshot
from megatron_nanguard.replay.step_recorder import RecordedCall

AfterBackward = Callable[["int | None", int], None]
"""``after_backward(microbatch, chunk)``, while the step's context is still entered."""


@dataclass(frozen=True)
class ReplayResult:
    """A replay that came to its end.

    Attributes:
        seconds: it took.
        digests: of the state it left behind.
    """

    seconds: float
    digests: Digests


@dataclass(frozen=True)
class Exactness:
    """How true a replay was to the first pass.

    Attributes:
        differs: what is not the same bit for bit; empty means exact.
        tolerance: largest relative difference of the gradients; None where they are the same, or no copy was kept.
        finite_agrees: every gradient element that is finite in both is the same; None where no copy was kept.
        has_finite: there is such an element.
    """

    differs: tuple[str, ...]
    tolerance: float | None
    finite_agrees: bool | None = True
    has_finite: bool = True

    @property
    def exact(self) -> bool:
        """Everything is the same bit for bit."""
        return not self.differs


def replay(
    call: RecordedCall,
    during: AbstractContextManager[Any] | None = None,
    at: Around | None = None,
    after_backward: AfterBackward | None = None,
    batch: Batch | None = None,
) -> ReplayResult:
    """Make the call again and leave the replayed state behind.

    Args:
        call: of the step that is open.
        during: entered around the call alone, such as a tracer.
        at: ``at(microbatch, chunk, in_backward)`` is entered around each forward and backward step.
        after_backward: called after each backward step.
        batch: another step's data instead of this one's.
    Raises:
        ReplayError: the call asks for data that the first pass did not have.
        Exception: whatever the call raises; the other ranks then wait in vain, so the caller must end the process.
    Collective: all ranks that made the call, the same number of times.
    """
    call.snapshot.restore()
    zero_gradients(call.chunks)
    # Emptying the buffers moved the bucket groups on.
    call.snapshot.restore("buckets")
    call.device.synchronize()
    started = time.perf_counter()
    with (
        call.recording.handed_out_again(batch),
        rerun_machine_off(),
        weights_stay(call.chunks),
        followed(call.chunks, _both(at, after_backward)),
        # optimizer.step is under no_grad: without the recorded mode there is no backward, and equal losses hide it.
        torch.set_grad_enabled(call.grad_mode),
        # In the engine's own threads sequence numbers of autograd nodes would not be unique.
        torch.autograd.set_multithreading_enabled(False),
        during or nullcontext(),
    ):
        call.schedule(**call.kwargs)
    call.device.synchronize()
    seconds = time.perf_counter() - started
    return ReplayResult(seconds, Digests.take(call.chunks, call.device))


def _both(at: Around | None, after_backward: AfterBackward | None) -> Around:
    @contextmanager
    def around(microbatch: int | None, chunk: int, in_backward: bool) -> Iterator[None]:
        with at(microbatch, chunk, in_backward) if at else nullcontext():
            yield
            if in_backward and after_backward:
                after_backward(microbatch, chunk)

    return around


@dataclass(frozen=True)
class DecisionPoint:
    """The state after the first pass, gradients included, to go back to.

    Attributes:
        snapshot: everything else.
        gradients: the copy of the gradients.
        digests: of the first pass.
    """

    call: RecordedCall
    snapshot: Snapshot
    gradients: GradientCopy
    digests: Digests

    @classmethod
    def take(cls, call: RecordedCall) -> DecisionPoint:
        """To be called once per incident, before the first replay.

        Sync: a host read for the digests; only on an incident.
        """
        return cls(
            call,
            Snapshot.capture(call.chunks, call.device),
            GradientCopy(call.chunks, call.device),
            Digests.take(call.chunks, call.device),
        )

    def compare(self, result: ReplayResult) -> Exactness:
        """How true a replay was, before anything is put back."""
        differs = self.digests.differences(result.digests)
        if "gradients" not in differs:
            return Exactness(differs, None)
        copy = self.gradients
        return Exactness(differs, copy.largest_difference(), copy.agrees_where_finite(), copy.has_finite())

    def put_back(self) -> tuple[str, ...]:
        """Everything as after the first pass.

        Returns:
            What is not as it was, bit for bit: gradients, where there was no room for a copy and the replay was not
            exact.
        """
        self.snapshot.restore()
        self.gradients.put_back()
        return self.digests.differences(Digests.take(self.call.chunks, self.call.device))
