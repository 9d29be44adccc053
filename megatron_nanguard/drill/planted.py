"""What every phase has in common: the place a drill is planted in, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.nn import Module, Parameter

from megatron_nanguard.drill.trigger import Trigger
from megatron_nanguard.megatron_api.protocols import ModelChunk
from megatron_nanguard.parameters.registry import ParameterMap


@dataclass(frozen=True)
class DrilledModel:
    """The model as this rank holds it.

    Attributes:
        chunks: the model chunks, wrapped as Megatron trains them.
        modules: module by global name.
        parameter_map: entry by parameter, and parameters by place in a buffer.
        head_width: elements of the last dim that belong to one attention head; None where the model has no heads.
    """

    chunks: Sequence[ModelChunk]
    modules: Mapping[str, Module]
    parameter_map: ParameterMap
    head_width: int | None


class PlantedDrill:
    """A drill in its place. A phase overrides the moments it needs."""

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger

    def step_begins(self, step: int) -> None:
        """A training step begins, or its replay does: micro-batches count from 0 again."""
        self.trigger.step = step

    def step_ends(self) -> None:
        """What runs from here to the next step, such as an evaluation, is not touched."""
        self.trigger.step = None

    def before_reduction(self, params: Sequence[Parameter]) -> None:
        """The gradients of these parameters are complete and about to be reduced."""

    def after_reduction(self) -> None:
        """All gradients are reduced and about to be looked at."""

    def remove(self) -> None:
        """Take the hooks off again."""
