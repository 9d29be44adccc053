"""Make the recorded call again in place, with the same state and data, and go back to the decision point afterwards.

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

from megatron_nanguard.megatron_api.bucket_state import without_weight_gather, zero_gradients
from megatron_nanguard.megatron_api.process_state import rerun_machine_off
from megatron_nanguard.megatron_api.schedules import Around, intercept_steps
from megatron_nanguard.replay.data_iterators import Batch
from megatron_nanguard.replay.digests import differences, state_digests
from megatron_nanguard.replay.gradient_copy import GradientCopy
from megatron_nanguard.replay.snapshot import Snapshot
from megatron_nanguard.replay.step_recorder import RecordedCall

AfterBackward = Callable[["int | None", int], None]
"""``after_backward(microbatch, chunk)``, while the step's context is still entered."""


@dataclass(frozen=True)
class ReplayResult:
    """A replay that ran to its end.

    Attributes:
        seconds: duration.
        digests: of the state after it, by the name of a part.
    """

    seconds: float
    digests: dict[str, str]


@dataclass(frozen=True)
class Exactness:
    """How a replay compares with the first pass.

    Attributes:
        differs: parts of the state that are not the same bit for bit; empty means exact.
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
        """Whether everything is the same bit for bit."""
        return not self.differs


def replay(
    call: RecordedCall,
    during: AbstractContextManager[Any] | None = None,
    at: Around | None = None,
    after_backward: AfterBackward | None = None,
    batch: Batch | None = None,
) -> ReplayResult:
    """Make the call again. The state is that of the replay afterwards; `DecisionPoint.put_back` restores the first.

    Args:
        call: the schedule call of the step that is not decided yet.
        during: entered around the call alone, such as a tracer.
        at: ``at(microbatch, chunk, in_backward)`` is entered around each forward and backward step.
        after_backward: called after each backward step.
        batch: another step's data instead of this one's.
    Raises:
        ReplayError: the call asks for data that the first pass did not have.
        Exception: whatever the call raises. The other ranks then wait for this one, so the caller must end the process.
    Collective: all ranks that made the call, the same number of times.
    """
    call.snapshot.restore()
    zero_gradients(call.chunks)
    # zero_gradients changed the state of the bucket groups.
    call.snapshot.restore("buckets")
    call.device.synchronize()
    started = time.perf_counter()
    with (
        call.recording.handed_out_again(batch),
        rerun_machine_off(),
        without_weight_gather(call.chunks),
        intercept_steps(call.chunks, _both(at, after_backward)),
        # optimizer.step runs under no_grad. Without the recorded mode there would be no backward, at equal losses.
        torch.set_grad_enabled(call.grad_mode),
        # Threads of the autograd engine count sequence numbers each for itself; the tracer needs unique ones.
        torch.autograd.set_multithreading_enabled(False),
        during or nullcontext(),
    ):
        call.schedule(**call.kwargs)
    call.device.synchronize()
    seconds = time.perf_counter() - started
    return ReplayResult(seconds, state_digests(call.chunks, call.device))


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
    """The state after the first pass, to go back to after replays.

    Attributes:
        snapshot: everything but the gradients.
        gradients: the copy of the gradients.
        digests: of the first pass.
    """

    call: RecordedCall
    snapshot: Snapshot
    gradients: GradientCopy
    digests: dict[str, str]

    @classmethod
    def take(cls, call: RecordedCall) -> DecisionPoint:
        """Take the state now; once per incident, before the first replay.

        Sync: a host read for the digests; only on an incident.
        """
        return cls(
            call,
            Snapshot.capture(call.chunks, call.device),
            GradientCopy(call.chunks, call.device),
            state_digests(call.chunks, call.device),
        )

    def compare(self, result: ReplayResult) -> Exactness:
        """Compare a replay with the first pass; before anything is put back."""
        differs = differences(self.digests, result.digests)
        if "gradients" not in differs:
            return Exactness(differs, None)
        copy = self.gradients
        return Exactness(differs, copy.largest_difference(), copy.agrees_where_finite(), copy.has_finite())

    def put_back(self) -> tuple[str, ...]:
        """Restore the state after the first pass.

        Returns:
            Parts that are not the same bit for bit: gradients, where there was no room for a copy and the replay was
            not exact.
        """
        self.snapshot.restore()
        self.gradients.put_back()
        return differences(self.digests, state_digests(self.call.chunks, self.call.device))
