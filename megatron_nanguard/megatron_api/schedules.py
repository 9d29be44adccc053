"""The forward and backward step of one micro-batch, which every pipeline schedule calls by its global name."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from megatron_nanguard.megatron_api.protocols import ModelChunk

Around = Callable[["int | None", int, bool], AbstractContextManager[object]]
"""``around(microbatch, chunk, in_backward)`` gives the context of a step; the micro-batch is None if unknown."""

SCHEDULES = "megatron.core.pipeline_parallel.schedules"


@contextmanager
def intercept_steps(chunks: Sequence[ModelChunk], around: Around) -> Iterator[None]:
    """Run every forward and backward step inside the context that `around` gives for it.

    Source: megatron/core/pipeline_parallel/schedules.py, forward_step (``model`` and ``current_microbatch`` in every
        release) and backward_step (a ``model_type`` up to 0.16)
    """
    schedules: Any = sys.modules[SCHEDULES]
    forward, backward = schedules.forward_step, schedules.backward_step
    signature = inspect.signature(forward)
    outputs: dict[int, tuple[int | None, int]] = {}

    @functools.wraps(forward)
    def forward_step(*args: object, **kwargs: object) -> object:
        given = signature.bind(*args, **kwargs).arguments
        chunk = next((number for number, chunk in enumerate(chunks) if chunk is given["model"]), 0)
        microbatch = given.get("current_microbatch")
        with around(microbatch, chunk, False):
            returned = forward(*args, **kwargs)
        # (output or [output], number of tokens). The schedule keeps the output and hands the same object to the
        # backward step, after `deallocate_output_tensor` too.
        outputs[id(_first(_first(returned)))] = (microbatch, chunk)
        return returned

    @functools.wraps(backward)
    def backward_step(input_tensor: object, output_tensor: object, *args: object, **kwargs: object) -> object:
        microbatch, chunk = outputs.pop(id(_first(output_tensor)), (None, 0))
        with around(microbatch, chunk, True):
            return backward(input_tensor, output_tensor, *args, **kwargs)

    schedules.forward_step, schedules.backward_step = forward_step, backward_step
    try:
        yield
    finally:
        schedules.forward_step, schedules.backward_step = forward, backward


def _first(value: object) -> object:
    return value[0] if isinstance(value, list | tuple) else value
