"""Keep track of where the traced pass is: step of the schedule, module and autograd node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.nn import Parameter

from megatron_nanguard.records.trace import Phase
from megatron_nanguard.tracing.calls.call_stack import CallStack
from megatron_nanguard.tracing.places.external_tensors import module_of
from megatron_nanguard.tracing.places.nodes import (
    Nodes,
    NumberedNodes,
    TaggedNodes,
    can_tag_nodes,
    is_accumulation,
    short_name,
)
from megatron_nanguard.tracing.places.source_lines import SourceLines, backward_line
from megatron_nanguard.tracing.places.step_place import ForwardPlace, Step, StepPlace
from megatron_nanguard.tracing.recording.operators import Operator


class CurrentPlace:
    """Gives the place of the operator that runs now.

    Attributes:
        step: the forward or backward step that runs, or an empty one between such steps.
        operator: label of the operator dispatched last.
        has_skipped: a step has begun that is not traced.
        tags_nodes: nodes know where they were created in every thread.
    """

    def __init__(
        self,
        calls: CallStack,
        params: Mapping[Parameter, str],
        microbatch: int | None,
        on_node: Callable[[Node], None],
        shielded: Callable[..., None],
    ) -> None:
        """Nothing is followed before `following` is entered.

        Args:
            calls: the calls that run.
            params: global name of each parameter.
            microbatch: the one to trace; None traces only what the schedule runs between its steps.
            on_node: called with each node when it is created, if torch has a hook for that.
            shielded: ``shielded(function, *args)`` calls a function of the tracer; its faults do not reach the step.
        """
        self.step = Step()
        self.operator = ""
        self.has_skipped = False
        self.tags_nodes = can_tag_nodes()
        self._params, self._microbatch = params, microbatch
        self._lines = SourceLines()
        self._nodes: Nodes = self._tagged(on_node, shielded) if self.tags_nodes else NumberedNodes(self._forward_place)
        self._calls = calls
        calls.before_change = self._nodes.note

    @property
    def is_traced(self) -> bool:
        """Whether the chosen micro-batch runs, or no step at all."""
        return self.step.microbatch is None or self.step.microbatch == self._microbatch

    @property
    def is_in_backward(self) -> bool:
        """Whether the engine carries gradients from node to node."""
        return torch._C._current_autograd_node() is not None and not self._calls.is_in_forward

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow nodes.

        Meanwhile the backward runs in the calling thread, because the sequence numbers of nodes count per thread.
        """
        with ExitStack() as stack:
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(self._nodes.recording())
            yield

    @contextmanager
    def at(self, step: Step) -> Iterator[None]:
        """Enter this around a forward or backward step of the schedule."""
        self._nodes.note()
        outer, self.step = self.step, step
        self.has_skipped |= not self.is_traced
        try:
            yield
        finally:
            self._nodes.note()
            self.step = outer

    def about_to_run(self, operator: Operator) -> None:
        """Note the operator that is being dispatched; its node is created just before or just after."""
        # A node detaches what it saves for the backward before the creation hook gets the node.
        if operator.base != "detach":
            self.operator = operator.label
        self._nodes.note()

    def place(self, between: Phase = "finalize") -> StepPlace:
        """Return the place of the operator that runs now.

        Args:
            between: the phase to give between the steps of the schedule.
        """
        node: Any = torch._C._current_autograd_node()
        line = self._lines.here()
        if node is None:
            return StepPlace(self._phase_of_step(between), self.step, self._calls.module, None, line)
        name = short_name(node)
        if is_accumulation(node):
            parameter = self._params.get(node.variable, "")
            return StepPlace("accumulate", self.step, module_of(parameter), name, line, parameter=parameter)
        forward = self._nodes.forward_place(node)
        step = self.step if self.step.microbatch is not None or forward is None else forward.step
        inside = "" if forward is None else forward.module
        # A forward inside of a node: activations are recomputed. The forward of a Function runs without gradients.
        if torch.is_grad_enabled() or self._calls.is_in_forward:
            return StepPlace("recompute", step, self._calls.module or inside, name, line)
        return StepPlace(
            "backward", step, inside or self._calls.module, name, line, forward, function=backward_line(node)
        )

    def _tagged(self, on_node: Callable[[Node], None], shielded: Callable[..., None]) -> Nodes:
        return TaggedNodes(self._forward_place, on_node, shielded)

    def _phase_of_step(self, between: Phase) -> Phase:
        if self.step.microbatch is None:
            return between
        return "backward" if self.step.in_backward else "forward"

    def _forward_place(self, node: Node | None = None) -> ForwardPlace | None:
        if not self.is_traced:
            return None
        running = torch._C._current_autograd_node()
        around = None if running is None else self._nodes.forward_place(running)
        module, step = self._calls.module, self.step
        if around is not None:
            module, step = module or around.module, step if step.microbatch is not None else around.step
        function = getattr(node, "_forward_cls", None)
        return ForwardPlace(module, step, self.operator if function is None else function.__name__, self._lines.here())
