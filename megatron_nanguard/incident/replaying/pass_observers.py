"""What looks at one pass of a replay: a plain one at gradients and losses only, a traced one at every operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from torch import Tensor

from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.megatron_api.schedules import Around
from megatron_nanguard.replay import FirstBad
from megatron_nanguard.sentinel.gradient_norms import BucketNorms
from megatron_nanguard.tracing.tracer import Tracer


class PassObserver(Protocol):
    """Looks at one pass.

    Attributes:
        surrounding: entered around the schedule's call.
        heard_loss: called with the micro-batch and its loss at the moment it is known.
        around_step: entered around each forward and backward step of the schedule.
    """

    @property
    def surrounding(self) -> AbstractContextManager[Any]: ...

    @property
    def heard_loss(self) -> Callable[[int, Tensor], None] | None: ...

    @property
    def around_step(self) -> Around | None: ...

    def after_backward(self, microbatch: int | None, chunk: int) -> None:
        """A backward step of a chunk is over."""

    def finish(self) -> None:
        """The pass is over, its gradients are those that the optimizer would get."""

    def bad_microbatches(self, before: Sequence[BucketNorms]) -> Iterable[int]:
        """The micro-batches in which a gradient turned bad.

        Args:
            before: norms before the reduction, taken in the same pass.
        """


class PlainObserver:
    """Finds the micro-batches in which a gradient turned bad, and changes nothing in the pass.

    Args:
        conditions: entered around the call, to run the pass under changed conditions.
    """

    heard_loss = None
    around_step = None

    def __init__(self, chunks: Sequence[ModelChunk], conditions: AbstractContextManager[Any] | None = None) -> None:
        self.surrounding = conditions or nullcontext()
        self._first_bad = FirstBad(chunks)

    def after_backward(self, microbatch: int | None, chunk: int) -> None:
        self._first_bad.look(microbatch, chunk)

    def finish(self) -> None:
        """There is nothing left to look at."""

    def bad_microbatches(self, before: Sequence[BucketNorms]) -> Iterable[int]:
        return self._first_bad.read(before)


class TracingObserver:
    """Lets a tracer read along. The micro-batch it traces was found before, so it reports none."""

    def __init__(self, tracer: Tracer) -> None:
        self.surrounding: AbstractContextManager[Any] = tracer
        self.heard_loss = tracer.add_loss
        self.around_step: Around = tracer.at
        self.after_backward = tracer.after_backward
        self.finish = tracer.finish

    def bad_microbatches(self, before: Sequence[BucketNorms]) -> Iterable[int]:
        return ()
