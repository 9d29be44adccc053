"""Register model chunks when their parameters are sorted into groups: Megatron does not keep their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper

if TYPE_CHECKING:
    from megatron_nanguard.megatron_api.protocols import ModelChunk


def make_wrapper(chunks_seen: Callable[[Sequence[ModelChunk]], None]) -> Wrapper:
    """``chunks_seen(model_chunks)`` is called before the groups are made."""

    def _get_param_groups(wrapped: Wrapped, instance: None, args: Args, kwargs: Kwargs) -> object:
        chunks_seen(args[0] if args else kwargs["model_chunks"])
        return wrapped(*args, **kwargs)

    return _get_param_groups


POINT = PatchPoint(
    name="get_param_groups",
    group="names",
    targets=(
        Target(
            "megatron.core.optimizer:_get_param_groups",
            parameters=("model_chunks",),
            copies=("megatron.core.optimizer.muon:_get_param_groups",),
        ),
    ),
    why="for trainers that imported the optimizer factory before it was wrapped; the method of this name is another",
    lost="names of parameters where the trainer holds its own copy of the optimizer factory",
    make_wrapper=make_wrapper,
)
