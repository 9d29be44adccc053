"""Know every model chunk that is wrapped for data parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megatron_nanguard.patching import PatchPoint, Target, Wrapper


def make_wrapper(chunk_wrapped: Callable[[Any], None]) -> Wrapper:
    """``chunk_wrapped(ddp)`` is called when the constructor has returned."""

    def __init__(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
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
    why="handshake of last resort, and chunks of trainers that go past the optimizer factory",
    lost="trainers without initialize_model_parallel run unguarded",
    make_wrapper=make_wrapper,
)
