"""What one rank's tracer saw of one micro-batch, cut down to what a bad gradient, loss or message leads back to."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Literal, get_args

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records import SCHEMA_VERSION
from megatron_nanguard.records.channel import Channel
from megatron_nanguard.records.phrase import Phrase, phrase

Phase = Literal[
    "load", "forward", "recompute", "backward", "accumulate", "reduce", "finalize", "optimizer", "clip", "gather"
]


Pattern = Literal["nan", "inf", "nan+inf", "finite"]
MessageContents = Literal["gradients", "parameters", ""]

GRADIENT_OF: Final = "gradient of "
"""Begins the name of a gradient that held something before any event; the parameter follows."""
MARKER_FILL: Final = "marker fill"
"""Label of a pass in which all fresh memory was filled with a NaN of known bits."""
NUMBER: Final = "number"
"""Stands for the dtype of an argument that is a plain number."""
LISTED: Final = 8
"""Longest list of origins or arrivals in a trace; a shorter one was not cut."""
LISTED_DEPARTURES: Final = 256
"""Longest list of departures: each must be found again from the ranks it went to."""


class OriginKind(enum.Enum):
    """What the walk back ended at.

    Attributes:
        OPERATOR: an operator with a bad output and no bad input.
        OUTSIDE: a tensor from before the trace that was bad already: a weight, a buffer, data.
        UNSEEN: a tensor that something the dispatcher does not see has written: a fused kernel, another thread.
        NEVER_WRITTEN: memory that was read before anything was written to it.
        COMMUNICATION: a collective whose result is bad although every member sent finite values.
        SCALER: an overflow to Inf of scaled values that is the loss scaler at work.
    """

    OPERATOR = "operator"
    OUTSIDE = "outside"
    UNSEEN = "unseen"
    NEVER_WRITTEN = "never_written"
    COMMUNICATION = "communication"
    SCALER = "scaler"


@dataclass(frozen=True)
class TracedPlace:
    """Where in the step an event happened.

    Attributes:
        phase: of the step.
        microbatch: zero-based; null outside of any.
        chunk: model chunk on the rank (virtual pipelining).
        module: global module path; empty outside of any.
        node: autograd node that ran; null in the forward.
        source_line: `file:line in function` of the first frame outside torch; null when unknown.
        forward_operator: the forward operator that made the node; null when unknown.
        forward_line: its source line.
        function_line: `file:line in Class.backward`, where the autograd.Function is written whose backward runs; null
            where none does.
    """

    phase: Phase
    microbatch: int | None
    chunk: int
    module: str
    node: str | None = None
    source_line: str | None = None
    forward_operator: str | None = None
    forward_line: str | None = None
    function_line: str | None = None


@dataclass(frozen=True)
class TensorFacts:
    """One tensor of an event, or a plain number among its arguments.

    Attributes:
        name: argument or output name, such as "dK"; its number when it has none.
        shape: of the tensor.
        dtype: without "torch."; "number" for a plain number, which is listed only where it is NaN or Inf.
        pattern: what was seen in it.
        nan_count: NaN elements; null where they were not counted.
        inf_count: Inf elements of either sign; null where they were not counted.
        absmax: largest finite magnitude; null where it was not measured.
        positions: first bad positions, at most 8.
        layout: what the positions have in common, in words, such as "rows 5 to 7" or "aligned block of 2048"; empty if
            nothing.
        lowest: smallest finite element; null where it was not measured.
        highest: largest finite element; null where it was not measured.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    pattern: Pattern
    nan_count: int | None = None
    inf_count: int | None = None
    absmax: float | None = None
    positions: tuple[tuple[int, ...], ...] = ()
    layout: str = ""
    lowest: float | None = None
    highest: float | None = None


@dataclass(frozen=True)
class CauseLink:
    """What a bad value leads back to on its rank: an origin, or a message that arrived.

    Attributes:
        to: "origin" or "arrival".
        index: position in the rank's `origins` or `arrivals`.
    """

    to: Literal["origin", "arrival"]
    index: int


@dataclass(frozen=True)
class TracedOrigin:
    """Where the walk back ends on this rank.

    Attributes:
        event: running number in the trace, in the order of execution.
        kind: what it is.
        operator: operator or region, such as "log" or "FusedAttentionBackward"; the tensor where nothing ran.
        place: where.
        outputs: the bad outputs, with counts and positions.
        inputs: every tensor it read, and the plain numbers among its arguments that are NaN or Inf; empty where nothing
            of what went in was recorded.
        times: how many events like this one there were.
        path: from here towards the gradient, `operator in module`, at most a few hundred.
        not_seen: names of arguments of a region that could not be looked at.
        reader: where it is a tensor from before the trace, the event of the first operator on that path; the first to
            read the tensor may have left out what is bad in it. Null elsewhere.
    """

    event: int
    kind: OriginKind
    operator: str
    place: TracedPlace
    outputs: tuple[TensorFacts, ...]
    inputs: tuple[TensorFacts, ...] = ()
    times: int = 1
    path: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()
    reader: int | None = None


@dataclass(frozen=True)
class Message:
    """A communication of this rank, arrived or departed. Sender and receiver share group and number.

    Attributes:
        event: running number in the trace.
        operator: such as "allreduce_" or "recv_".
        channel: between which ranks, as a position in the trace's `channels`.
        number: of the communication on this channel, from 0.
        sent: pattern of what this rank sent; "finite" where it sent nothing bad or nothing.
        arrived: pattern of what it has afterwards.
        first_used: where the result was read first; null when it was not read.
        causes: what the bad values sent lead back to, on this rank.
        carries: "gradients" or "parameters" where its memory is that of the model's; else empty.
        line: of an arrival of a collective, the line that called it; null when unknown.
        put_in: of an arrival, the largest that this rank sent; null where it sent nothing.
        came_out: of an arrival, the worst that this rank has afterwards; null of a departure.
    """

    event: int
    operator: str
    channel: int
    number: int
    sent: Pattern
    arrived: Pattern
    first_used: TracedPlace | None = None
    causes: tuple[CauseLink, ...] = ()
    carries: MessageContents = ""
    line: str | None = None
    put_in: TensorFacts | None = None
    came_out: TensorFacts | None = None


@dataclass(frozen=True)
class Sink:
    """Bad gradients or losses at the end of the traced pass that lead back to the same.

    Attributes:
        names: global parameter names, or "loss of micro-batch 2".
        pattern: what was seen.
        causes: what they lead back to, on this rank; empty when their writers were not seen.
    """

    names: tuple[str, ...]
    pattern: Pattern
    causes: tuple[CauseLink, ...]


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """The traced pass of one rank: the content of `trace00005_tp1pp1dp0.json`.

    Attributes:
        rank: global rank.
        coords: its place, such as "tp1pp1dp0".
        microbatch: the one that was traced; null when the schedule phase was.
        labels: what was special about this pass, such as "marker fill".
        channels: those of its messages, each once.
        origins: at most 8, earliest first.
        arrivals: messages that were bad on arrival and lead somewhere, at most 8, earliest first.
        departures: messages with bad values sent.
        sinks: bad gradients and losses.
        num_events: recorded.
        num_meant: infinities that were meant, such as a mask.
        num_contained: bad events without effect on any gradient, loss or message.
        truncated: origins, arrivals, departures and sinks left out.
        broken: why there is no verdict of this rank; empty when there is one.
        schema_version: form of this file.
    """

    rank: int
    coords: str
    microbatch: int | None
    labels: tuple[str, ...] = ()
    channels: tuple[Channel, ...] = ()
    origins: tuple[TracedOrigin, ...] = ()
    arrivals: tuple[Message, ...] = ()
    departures: tuple[Message, ...] = ()
    sinks: tuple[Sink, ...] = ()
    num_events: int = 0
    num_meant: int = 0
    num_contained: int = 0
    truncated: int = 0
    broken: str = ""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        """Refuse messages of a channel that is not listed."""
        for message in (*self.arrivals, *self.departures):
            if not 0 <= message.channel < len(self.channels):
                raise PostmortemError(f"a message has channel {message.channel}, {len(self.channels)} are listed")


def phase_words(phase: str) -> str:
    """A phase of the step in a sentence; one of another version as it is."""
    return Phrase(phase) if phase in get_args(Phase) else phase


def place_words(phase: str, microbatch: int | None) -> str:
    """A phase, with its micro-batch where it has one: "backward of micro-batch 2"."""
    words = phase_words(phase)
    if microbatch is None:
        return words
    return phrase("{phase} of micro-batch {microbatch}", phase=words, microbatch=microbatch)


def pattern_of(nan: object, inf: object) -> Pattern:
    """Name what was seen.

    Args:
        nan: truthy if there was a NaN, such as a count.
        inf: truthy if there was an Inf of either sign.
    """
    if nan and inf:
        return "nan+inf"
    if nan:
        return "nan"
    return "inf" if inf else "finite"
