"""Events of a traced pass: names, places and flags of operators and messages; no event keeps a tensor alive."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.trace import NUMBER, MessageContents, TensorFacts
from megatron_nanguard.tensor_names import dtype_name
from megatron_nanguard.tracing.calls.call_stack import CallPart
from megatron_nanguard.tracing.places.step_place import StepPlace
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import Slot, pattern


class EventKind(enum.Enum):
    """What happened.

    Attributes:
        OPERATOR: an operator ran.
        EMPTY: an operator such as `empty` returned memory without values.
        FILLED: such memory was read for the first time, and no event had written all of it.
        EXTERNAL: a tensor from before the trace, or from an untraced step, was read for the first time.
        MESSAGE: a collective, send or receive.
        LOOKED: the tracer looked at a tensor that a kernel may have written unseen: when a region ended, or after a
            backward step.
    """

    OPERATOR = "operator"
    EMPTY = "empty"
    FILLED = "filled"
    EXTERNAL = "external"
    MESSAGE = "message"
    LOOKED = "looked"


class TracedOutput(NamedTuple):
    """A tensor that an event wrote or read.

    Attributes:
        slot: its flag; None if it can hold neither NaN nor Inf, or was not looked at.
        shape: of the tensor.
        dtype: of the tensor.
    """

    slot: Slot | None
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor, slot: Slot | None) -> TracedOutput:
        """Describe a tensor."""
        return cls(slot, tuple(tensor.shape), tensor.dtype)

    def facts(self, name: str, bits: int) -> TensorFacts:
        """Describe the tensor by its flag alone.

        Args:
            name: of the argument or output.
            bits: what the flag says; 0 is finite.
        """
        return TensorFacts(name, self.shape, dtype_name(self.dtype), pattern(bits))


class TracedRead(NamedTuple):
    """A tensor that an event read.

    Attributes:
        name: of the argument.
        column: the only output that the tensor can have gone into; None if it can have gone into all.
        writers: outputs of earlier events that the tensor lies in, newest first.
        seen: the tensor itself; it has a flag of its own only if it is a part of what its writers wrote.
    """

    name: str
    column: int | None
    writers: tuple[Writer, ...]
    seen: TracedOutput


class Sent(NamedTuple):
    """What this rank sent in a message.

    Attributes:
        channel: the ranks that take part.
        number: of the message on this channel, from 0.
        slots: flags of the tensors sent, taken before the call.
    """

    channel: Channel
    number: int
    slots: list[Slot | None]

    @property
    def has_peers(self) -> bool:
        """Whether another rank takes part."""
        return len(self.channel) > 1


@dataclass(eq=False)
class Region:
    """A call that can hide kernels: the forward or backward of an autograd.Function, a module call, or a step.

    What was written in it unseen can depend on all that went in, and on what operators made directly in it before.

    Attributes:
        part: which of them it is.
        name: such as "_Linear.forward" or "_LinearBackward"; empty for a module and a step.
        first_event: number of the first event in it.
        reads: the tensors that went in.
        made: what operators and inner calls made directly in it so far.
        arguments: gives the tensors that went into a module; they are read only if something is written in it unseen.
        not_seen: names of arguments that could not be looked at.
    """

    part: CallPart
    name: str = ""
    first_event: int = 0
    reads: list[TracedRead] = field(default_factory=list)
    made: list[Writer] = field(default_factory=list)
    arguments: Callable[[], Iterable[tuple[str, Tensor]]] | None = None
    not_seen: list[str] = field(default_factory=list)

    @property
    def is_function(self) -> bool:
        """Whether it is the forward or backward of an autograd.Function."""
        return self.part in ("forward", "backward")

    @property
    def is_compiled(self) -> bool:
        """Whether it is a compiled graph, which takes its buffers past the dispatcher."""
        return self.name.startswith("CompiledFunction")


@dataclass(slots=True)
class TracedEvent:
    """One event of a traced pass.

    Attributes:
        operator: label of the operator; for an EXTERNAL or LOOKED event what the tensor is.
        kind: what happened.
        place: where in the step.
        reads: the tensors read.
        outputs: the tensors written.
        is_parallel: the n-th output was made from the n-th elements of the argument lists only.
        is_parameter: an EXTERNAL tensor is a parameter of the model or a gradient.
        is_untraced: the values may come from a step that was not traced.
        first_used: where the result of a message, or FILLED memory, was read first.
        sent: what this rank sent, if the event is a message.
        never_written: how many elements of a FILLED tensor still held the marker; 0 before the end of the pass, and
            without marker fill.
        input_facts: close looks at `reads`, of a probed or newly bad event.
        output_facts: close looks at `outputs`, of the same events.
        other_facts: further arguments: plain numbers that are NaN or Inf; of a probed event also tensors that can hold
            neither.
        carries: whether a message lies in the gradients or parameters of the model.
        region: the innermost call that it happened in; of FILLED memory the one that allocated it.
    """

    operator: str
    kind: EventKind
    place: StepPlace
    reads: list[TracedRead]
    outputs: list[TracedOutput] = field(default_factory=list)
    is_parallel: bool = False
    is_parameter: bool = False
    is_untraced: bool = False
    first_used: StepPlace | None = None
    sent: Sent | None = None
    never_written: int = 0
    input_facts: list[TensorFacts] = field(default_factory=list)
    output_facts: list[TensorFacts] = field(default_factory=list)
    other_facts: list[TensorFacts] = field(default_factory=list)
    carries: MessageContents = ""
    region: Region | None = None

    @property
    def is_unseen_write(self) -> bool:
        """Whether a kernel can have written the outputs without being seen."""
        return self.kind in (EventKind.FILLED, EventKind.LOOKED)

    @property
    def has_bad_constant(self) -> bool:
        """Whether an argument was a plain number that is NaN or Inf."""
        return any(facts.dtype == NUMBER for facts in self.other_facts)


class SinkRead(NamedTuple):
    """A gradient or loss at the end of the pass, from which the walk back starts if it is bad.

    Attributes:
        name: of the parameter or loss.
        slot: flag of the gradient or loss.
        writers: outputs of events that it lies in.
    """

    name: str
    slot: Slot | None
    writers: tuple[Writer, ...]


class Trace(NamedTuple):
    """A traced pass.

    Attributes:
        events: in the order of execution.
        sinks: gradients and losses at the end.
        output_names: names of outputs, such as "grad of q".
    """

    events: list[TracedEvent]
    sinks: list[SinkRead]
    output_names: dict[Writer, str]
