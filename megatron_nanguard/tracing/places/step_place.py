"""Where in the step something happens: phase, micro-batch, module, node and line."""

from __future__ import annotations

from typing import NamedTuple

from megatron_nanguard.records.trace import Phase, TracedPlace
from megatron_nanguard.tracing.places.source_lines import SourceLine


class Step(NamedTuple):
    """The forward or backward step of the schedule that runs now."""

    microbatch: int | None = None
    chunk: int = 0
    in_backward: bool = False


class ForwardPlace(NamedTuple):
    """Where in the forward an autograd node was made.

    Attributes:
        module: global path.
        step: of the schedule.
        operator: the operator or autograd.Function.
        line: its source line.
    """

    module: str
    step: Step
    operator: str
    line: SourceLine | None


class StepPlace(NamedTuple):
    """A place as it is found; `record` puts it into words.

    Attributes:
        phase: of the step.
        step: of the schedule.
        module: global path.
        node: name of the autograd node that runs.
        line: of the source.
        made: where the node was made.
        parameter: the one whose gradient is accumulated; empty when none is.
        function: where the autograd.Function is written whose backward runs.
    """

    phase: Phase
    step: Step
    module: str
    node: str | None = None
    line: SourceLine | None = None
    made: ForwardPlace | None = None
    parameter: str = ""
    function: SourceLine | None = None

    def record(self) -> TracedPlace:
        """The same in words."""
        return TracedPlace(
            phase=self.phase,
            microbatch=self.step.microbatch,
            chunk=self.step.chunk,
            module=self.module,
            node=self.node,
            source_line=None if self.line is None else str(self.line),
            forward_operator=None if self.made is None else self.made.operator,
            forward_line=None if self.made is None or self.made.line is None else str(self.made.line),
            function_line=None if self.function is None else str(self.function),
        )
