"""Tie an optimizer to its model chunks: parameter names, shards, coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper

if TYPE_CHECKING:
    from megatron_nanguard.megatron_api.protocols import MegatronOptimizer, ModelChunk


def make_wrapper(optimizer_made: Callable[[MegatronOptimizer, Sequence[ModelChunk]], None]) -> Wrapper:
    """``optimizer_made(optimizer, model_chunks)`` is called on the factory's return."""

    def get_megatron_optimizer(wrapped: Wrapped, instance: None, args: Args, kwargs: Kwargs) -> object:
        optimizer = wrapped(*args, **kwargs)
        optimizer_made(optimizer, kwargs["model_chunks"] if "model_chunks" in kwargs else args[1])
        return optimizer

    return get_megatron_optimizer


POINT = PatchPoint(
    name="get_megatron_optimizer",
    group="names",
    targets=(
        Target(
            "megatron.core.optimizer:get_megatron_optimizer",
            parameters=("config", "model_chunks"),
            copies=(
                "megatron.training.training:get_megatron_optimizer",
                "megatron.core.optimizer.muon:get_megatron_optimizer",
            ),
        ),
    ),
    why="the only place that holds optimizer and model chunks together",
    lost="which shard of which parameter an optimizer owns",
    make_wrapper=make_wrapper,
)
