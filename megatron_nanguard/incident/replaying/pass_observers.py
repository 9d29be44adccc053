"""What looks at one pass of a replay: a plain one at gradients and losses only, a traced one at every operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.megatron_api.schedules import Around
from megatron_nanguard.replay.first_bad import FirstBad
from megatron_nanguard.sentinel.gradient_norms import BucketNorms
from megatron_nanguard.tracing.tracer import Tracer


@dataclass(frozen=True)
class PassObserver:
    """Looks at one pass.

    Attributes:
        surrounding: entered around the schedule's call.
        after_backward: called with micro-batch and chunk when a backward step of a chunk is over.
        first_bad: gives the first micro-batch in which a gradient turned bad, from the norms before the reduction of
            the same pass.
        finish: called when the pass is over; its gradients are those that the optimizer would get.
        heard_loss: called with the micro-batch and its loss at the moment it is known.
        around_step: entered around each forward and backward step of the schedule.
    """

    surrounding: AbstractContextManager[Any]
    after_backward: Callable[[int | None, int], None]
    first_bad: Callable[[Sequence[BucketNorms]], int | None]
    finish: Callable[[], None] = lambda: None
    heard_loss: Callable[[int, Tensor], None] | None = None
    around_step: Around | None = None

    @classmethod
    def plain(cls, chunks: Sequence[ModelChunk], conditions: AbstractContextManager[Any] | None = None) -> PassObserver:
        """Finds the micro-batches in which a gradient turned bad, and changes nothing in the pass.

        Args:
            conditions: entered around the call, to run the pass under changed conditions.
        """
        first_bad = FirstBad(chunks)
        return cls(conditions or nullcontext(), first_bad.look, first_bad.read)

    @classmethod
    def tracing(cls, tracer: Tracer) -> PassObserver:
        """Lets a tracer read along. The micro-batch it traces was found before, so it reports none."""
        return cls(tracer, tracer.after_backward, lambda before: None, tracer.finish, tracer.add_loss, tracer.at)
