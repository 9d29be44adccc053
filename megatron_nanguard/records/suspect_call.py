"""The suspect call of an origin: the call as it was saved, and the results of running it again.

The saved call is the content of `bundle/call.json`; its tensors are in `tensors.safetensors` beside it. It is run again
on its device, on a second device, and in higher precision on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from megatron_nanguard.records import SCHEMA_VERSION

BAD = "bad"
FINITE = "finite"
NOT_TRIED = "not_tried"

ValueKind = Literal[
    "tensor",
    "generator",
    "none",
    "bool",
    "int",
    "float",
    "complex",
    "str",
    "dtype",
    "device",
    "layout",
    "memory_format",
    "zeros",
    "object",
]


@dataclass(frozen=True)
class Value:
    """One value that was passed.

    Attributes:
        kind: its type.
        text: name of the tensor, or the value as text; "nan", "inf" and "-inf" are floats like any other. Of "zeros",
            which stands for a gradient to add to, the dtype; of an "object", which no file holds, its type.
    """

    kind: ValueKind
    text: str = ""


@dataclass(frozen=True)
class Argument:
    """One argument of the call.

    Attributes:
        name: by the operator's schema, or by the signature of the Function.
        values: one value, or those of a list.
        is_list: whether a list was passed.
    """

    name: str
    values: tuple[Value, ...]
    is_list: bool = False


@dataclass(frozen=True)
class SavedTensor:
    """Memory layout of a saved tensor, whose file holds the elements alone.

    Attributes:
        shape: as saved.
        stride: as saved, in elements.
        dtype: without "torch.".
        device: type of the device it was on.
        is_finite: whether it holds neither NaN nor Inf.
        requires_grad: as in the run.
        is_parameter: whether it is a parameter of the model.
        is_unwritten: whether nothing had been written into it when the call got it; its file holds zeros.
        attributes: what hangs on a parameter and may matter to a kernel, such as `main_grad`.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    is_finite: bool
    requires_grad: bool = False
    is_parameter: bool = False
    is_unwritten: bool = False
    attributes: tuple[Argument, ...] = ()


@dataclass(frozen=True)
class SavedOutput:
    """Count of bad elements in one output of the call.

    Attributes:
        name: such as "0", or "grad of bias"; "wgrad of weight" where a backward adds to the `main_grad` of a weight;
            the name of an argument that the call has overwritten.
        shape: of the output.
        dtype: without "torch.".
        nan: number of NaN elements.
        positive_inf: number of +Inf elements.
        negative_inf: number of -Inf elements.
        first: index of the first bad element; null when all are finite.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nan: int
    positive_inf: int
    negative_inf: int
    first: tuple[int, ...] | None = None

    @property
    def is_finite(self) -> bool:
        """Whether it holds neither NaN nor Inf."""
        return not (self.nan or self.positive_inf or self.negative_inf)


@dataclass(frozen=True)
class RowCut:
    """The rows that were saved of a call that works row by row.

    Attributes:
        rows: indexes in the first dim of the whole call, bad rows and a few good ones, ascending.
        num_rows: number of rows of the whole call.
    """

    rows: tuple[int, ...]
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class SavedCall:
    """The suspect call, as it was made in the traced replay.

    Attributes:
        rank: global rank that made it.
        step: step as the training log counts it; null when unknown.
        event: its number in the trace; null where it has none.
        kind: an operator of torch, or the forward or backward of an autograd Function.
        operator: such as "aten.log.default", or the name of the Function.
        source: where a Function is defined, as "module:qualified name"; empty of an operator.
        module: global module path; empty outside of any.
        phase: of the step; empty when unknown.
        args: positional arguments; of a Function those of its forward, without the context.
        kwargs: keyword arguments.
        grad_outputs: gradients of the outputs that a backward received.
        tensors: the input tensors by the names that the arguments use.
        outputs: the results.
        rows: which rows were saved; null when the call is whole.
        full_tensors: the whole inputs of a cut call, in `full.safetensors`; empty when they were not saved.
        full_outputs: the results of the whole inputs.
        rng: name of the saved random generator state; null where the call draws no random numbers.
        rng_device: type of the device of that generator; empty without one.
        in_marked_memory: whether all fresh memory was filled with NaN in the pass that saved it.
        cause: code of the likeliest cause; empty before there was a verdict.
        why_not: why the call cannot be run from here; empty when it can.
        is_redacted: whether its tensors were stripped.
        device: model name of the device that computed it.
        versions: versions of the packages that matter.
        notes: other remarks.
        schema_version: form of this file.
    """

    rank: int
    step: int | None = None
    event: int | None = None
    kind: Literal["operator", "forward", "backward"] = "operator"
    operator: str
    source: str = ""
    module: str = ""
    phase: str = ""
    args: tuple[Argument, ...] = ()
    kwargs: tuple[Argument, ...] = ()
    grad_outputs: tuple[Argument, ...] = ()
    tensors: dict[str, SavedTensor] = field(default_factory=dict)
    outputs: tuple[SavedOutput, ...] = ()
    rows: RowCut | None = None
    full_tensors: dict[str, SavedTensor] = field(default_factory=dict)
    full_outputs: tuple[SavedOutput, ...] = ()
    rng: str | None = None
    rng_device: str = ""
    in_marked_memory: bool = False
    cause: str = ""
    why_not: str = ""
    is_redacted: bool = False
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


def without_texts(call: SavedCall) -> SavedCall:
    """The call without the strings that it was given."""

    def strip(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        return tuple(
            replace(
                each, values=tuple(replace(value, text="") if value.kind == "str" else value for value in each.values)
            )
            for each in arguments
        )

    return replace(call, args=strip(call.args), kwargs=strip(call.kwargs), grad_outputs=strip(call.grad_outputs))


@dataclass(frozen=True, kw_only=True)
class Arbitration:
    """The suspect call of one origin, run again. An outcome is "bad", "finite", "not_tried" or why it was not run.

    Attributes:
        rank: global rank that made the call.
        operator: such as "aten.log.default"; of a Function "SwiGLUFunction.forward" or "SwiGLUFunctionBackward".
        event: its number in the trace; null where it has none.
        module: global module path.
        inputs_bad: whether an input held NaN or Inf.
        repeats: number of runs on the same device.
        repeats_bad: number of these runs with NaN or Inf in the result.
        zero_filled: number of these runs in which all fresh memory was filled with zeros before it was used; with
            NaN in the others, where the call was saved in a pass with all fresh memory filled with NaN.
        zero_filled_bad: how many of those gave NaN or Inf.
        peer: outcome on the device of another rank.
        peer_rank: that rank; null without one.
        peer_device: its device with the model name; empty without one.
        peer_is_alike: whether it is the same model in the same host; null without a peer.
        reference_fp32: outcome in float32 on the CPU, rounded to the dtype of the output.
        reference_fp64: the same in float64.
        out_of_range: whether the float64 result is finite, but not after rounding to the dtype of the output.
        reference: "aten" where torch's own operator ran in higher precision, else the name of the reference; or empty.
        captured: whether the call could be saved.
        note: why something was not tried, and other remarks.
    """

    rank: int
    operator: str
    event: int | None = None
    module: str = ""
    inputs_bad: bool = False
    repeats: int = 0
    repeats_bad: int = 0
    zero_filled: int = 0
    zero_filled_bad: int = 0
    peer: str = NOT_TRIED
    peer_rank: int | None = None
    peer_device: str = ""
    peer_is_alike: bool | None = None
    reference_fp32: str = NOT_TRIED
    reference_fp64: str = NOT_TRIED
    out_of_range: bool = False
    reference: str = ""
    captured: bool = True
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PeerAnswer:
    """The answer of a peer: the content of `answer.json`, beside the call that was sent to it.

    Attributes:
        rank: of the peer.
        device: its device with the model name.
        host: name of its host.
        outcome: "bad", "finite" or the reason why it did not run the call.
        schema_version: form of this file.
    """

    rank: int
    device: str
    host: str = ""
    outcome: str
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class DeviceOutcome:
    """A saved call on one device.

    Attributes:
        device: such as "cuda:1", or "cpu, float64" for the reference.
        outcome: "bad", "finite" or the reason why it did not run.
        outputs: the results; empty where it did not run.
    """

    device: str
    outcome: str
    outputs: tuple[SavedOutput, ...]
