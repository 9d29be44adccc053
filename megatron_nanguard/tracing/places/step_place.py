"""Where in the step something happens: phase, micro-batch, module, node and line."""

from __future__ import annotations

from typing import NamedTuple

from megatron_nanguard.records.trace import Phase, TracedPlace
from megatron_nanguard.tracing.places.source_lines import SourceLine


class Step(NamedTuple):
    """A forward or backward step of the schedule; without a micro-batch it is what runs between such steps."""

    microbatch: int | None = None
    chunk: int = 0
    in_backward: bool = False


class ForwardPlace(NamedTuple):
    """Where in the forward an autograd node was created.

    Attributes:
        module: global path.
        step: the forward or backward step of the schedule.
        operator: the forward operator or autograd.Function that the node differentiates.
        line: source line of that operator.
    """

    module: str
    step: Step
    operator: str
    line: SourceLine | None


class StepPlace(NamedTuple):
    """Where in the step an operator ran. Cheap to make: `record` turns it into words at the end of the pass.

    Attributes:
        phase: of the step.
        step: the forward or backward step of the schedule.
        module: global path; empty outside of any module.
        node: name of the autograd node that ran; None in the forward.
        line: source line that called the operator.
        forward: where in the forward the node was created.
        parameter: name of the parameter whose gradient was accumulated; empty in other phases.
        function: first line of the backward of an autograd.Function, if the node ran one.
    """

    phase: Phase
    step: Step
    module: str
    node: str | None = None
    line: SourceLine | None = None
    forward: ForwardPlace | None = None
    parameter: str = ""
    function: SourceLine | None = None

    def record(self) -> TracedPlace:
        """Return the same as a record."""
        return TracedPlace(
            phase=self.phase,
            microbatch=self.step.microbatch,
            chunk=self.step.chunk,
            module=self.module,
            node=self.node,
            source_line=None if self.line is None else str(self.line),
            forward_operator=None if self.forward is None else self.forward.operator,
            forward_line=None if self.forward is None or self.forward.line is None else str(self.forward.line),
            function_line=None if self.function is None else str(self.function),
        )
