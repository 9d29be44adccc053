"""What is remembered of an operator: names, places and flags; never a tensor."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.trace import NUMBER, MessageContents, TensorFacts
from megatron_nanguard.tensor_names import dtype_name
from megatron_nanguard.tracing.places.step_place import StepPlace
from megatron_nanguard.tracing.recording.lineage import Writer
from megatron_nanguard.tracing.recording.nonfinite_flags import Slot, pattern


class EventKind(enum.Enum):
    """What an event stands for.

    Attributes:
        OPERATOR: an operator ran.
        EMPTY: memory was handed out.
        FILLED: memory that was handed out is read for the first time, and no operator was seen filling all of it.
        OUTSIDE: a tensor from before the trace, or from a step that is not traced, is read for the first time.
        MESSAGE: a communication.
        LOOKED: a gradient was looked at, because a kernel may have written to it unseen: after a backward step, or when
            an autograd.Function hands it on.
    """

    OPERATOR = "operator"
    EMPTY = "empty"
    FILLED = "filled"
    OUTSIDE = "outside"
    MESSAGE = "message"
    LOOKED = "looked"


class TracedOutput(NamedTuple):
    """A tensor an event wrote."""

    slot: Slot | None
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor, slot: Slot | None) -> TracedOutput:
        """What is kept of a tensor."""
        return cls(slot, tuple(tensor.shape), tensor.dtype)

    def facts(self, name: str, bits: int) -> TensorFacts:
        """Describe the tensor by its flag alone.

        Args:
            name: of the argument or output.
            bits: what the flag says; 0 is finite.
        """
        return TensorFacts(name, self.shape, dtype_name(self.dtype), pattern(bits))


class TracedRead(NamedTuple):
    """A tensor an event read.

    Attributes:
        name: of the argument.
        column: the only output it can have gone into; None when it may have gone into all.
        writers: who wrote it, newest first.
        seen: its own flag and shape; the flag is taken only where it is a part of what its writers wrote.
    """

    name: str
    column: int | None
    writers: tuple[Writer, ...]
    seen: TracedOutput


class Sent(NamedTuple):
    """What makes a message: where it goes, and what this rank put in.

    Attributes:
        channel: between which ranks.
        number: of the communication on this channel.
        slots: flags of the tensors sent, taken before the call.
    """

    channel: Channel
    number: int
    slots: list[Slot | None]

    @property
    def has_peers(self) -> bool:
        """Whether another rank takes part."""
        return len(self.channel) > 1


@dataclass(slots=True)
class TracedEvent:
    """One event of the traced pass.

    Attributes:
        operator: its label, or what the tensor is.
        kind: what it stands for.
        place: where.
        reads: what went in.
        outputs: what came out.
        is_parallel: lists in, lists out, element by element.
        is_parameter: an OUTSIDE tensor that the model owns.
        is_untraced: what it holds may come from a step that is not traced.
        first_used: where its result was read first.
        sent: of a message.
        never_written: how many elements of a FILLED tensor still held the marker; 0 before the end of the pass, and
            without marker fill.
        input_facts, output_facts: looked at closely, in a pass with probes; of the inputs those that `reads` names.
        other_facts: of what else went in: plain numbers that are NaN or Inf, and with probes tensors without values.
        carries: of a message, whose memory it is in.
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

    @property
    def has_bad_constant(self) -> bool:
        """Whether a plain NaN or Inf was among the arguments."""
        return any(facts.dtype == NUMBER for facts in self.other_facts)


class SinkRead(NamedTuple):
    """A gradient or loss at the end."""

    name: str
    slot: Slot | None
    writers: tuple[Writer, ...]


class Trace(NamedTuple):
    """All events of a pass in the order of execution, and what became of the gradients and losses."""

    events: list[TracedEvent]
    sinks: list[SinkRead]
    output_names: dict[Writer, str]
