"""What the phases forward and backward share: hooks on a module, its micro-batches, and the tensor to change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.hooks import RemovableHandle

from megatron_nanguard.drill.targets import DrilledModel, find_module
from megatron_nanguard.drill.trigger import PlantedDrill, Trigger
from megatron_nanguard.megatron_api.protocols import ModelChunk


@dataclass(frozen=True)
class Execution:
    """One call of a module inside a training step.

    Attributes:
        microbatch: counted from 0 in this step.
        kind: "forward", or "recompute" where the call runs inside the backward.
    """

    microbatch: int
    kind: Literal["forward", "recompute"]


class Executions:
    """Follows one module of one chunk.

    The micro-batch of a forward is the number of forwards its chunk has begun: a module may run several times in one
    (the embedding under multi-token prediction), or in only one chunk of several under virtual pipelining. A
    recompute takes the forwards in the order in which they ran, as 1F1B orders the backwards of a chunk. Forwards
    that ran without gradients come first: they are certain to be recomputed, while with partial activation
    checkpointing the others are not recomputed at all.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._microbatch = -1
        self._without_grad: deque[int] = deque()
        self._with_grad: deque[int] = deque()

    def step_begins(self) -> None:
        """Count from 0 again."""
        self._is_open = True
        self._microbatch = -1
        self._without_grad.clear()
        self._with_grad.clear()

    def step_ends(self) -> None:
        """Ignore calls until the next step begins."""
        self._is_open = False

    def begin(self) -> Execution | None:
        """Register a call of the module and return it; None outside of a step. Called once per call of the module."""
        if not self._is_open:
            return None
        if is_inside_backward():
            return Execution((self._without_grad or self._with_grad).popleft(), "recompute")
        (self._with_grad if torch.is_grad_enabled() else self._without_grad).append(self._microbatch)
        return Execution(self._microbatch, "forward")

    def chunk_begins(self, chunk: ModelChunk, args: object) -> None:
        """Called before each forward of the chunk."""
        if self._is_open and not is_inside_backward():
            self._microbatch += 1


def is_inside_backward() -> bool:
    """Say whether this thread runs an autograd node: a forward that starts now is a recompute."""
    return torch._C._current_autograd_node() is not None


class ModuleDrill(PlantedDrill):
    """A drill in a module: follows its micro-batches and owns the hooks on it."""

    def __init__(self, trigger: Trigger, model: DrilledModel) -> None:
        super().__init__(trigger)
        self.module, chunk = find_module(trigger.drill, model)
        self.executions = Executions()
        self.handles: list[RemovableHandle] = [chunk.register_forward_pre_hook(self.executions.chunk_begins)]

    def step_begins(self, step: int) -> None:
        super().step_begins(step)
        self.executions.step_begins()

    def step_ends(self) -> None:
        super().step_ends()
        self.executions.step_ends()

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def replace_first(
    value: Any, is_wanted: Callable[[Tensor], bool], change: Callable[[Tensor], Tensor]
) -> tuple[Any, bool]:
    """Change the first wanted tensor in nested tuples, lists and dicts, depth first.

    Returns:
        The same structure with one tensor changed, and whether there was one.
    """
    leaves, structure = tree_flatten(value)
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and is_wanted(leaf):
            leaves[number] = change(leaf)
            return tree_unflatten(leaves, structure), True
    return value, False
