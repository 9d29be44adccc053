"""Register every model chunk that is wrapped for data parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper

if TYPE_CHECKING:
    from megatron_nanguard.megatron_api.protocols import ModelChunk


def make_wrapper(chunk_wrapped: Callable[[ModelChunk], None]) -> Wrapper:
    """``chunk_wrapped(ddp)`` is called when the constructor has returned."""

    def __init__(wrapped: Wrapped, instance: ModelChunk, args: Args, kwargs: Kwargs) -> object:
        result = wrapped(*args, **kwargs)
        chunk_wrapped(instance)
        return result

    return __init__


POINT = PatchPoint(
    name="wrap_chunk",
    group="names",
    targets=(
        Target(
            "megatron.core.distributed.distributed_data_parallel:DistributedDataParallel.__init__",
            parameters=("self", "config", "ddp_config"),
        ),
    ),
    why="last occasion for the handshake, and the chunks of trainers that do not call the optimizer factory",
    lost="trainers without initialize_model_parallel run unguarded",
    make_wrapper=make_wrapper,
)
