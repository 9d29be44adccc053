"""One call, saved: the content of `bundle/call.json`, whose tensors lie beside it in `tensors.safetensors`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from megatron_nanguard.records import SCHEMA_VERSION

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
]


@dataclass(frozen=True)
class Value:
    """One value that was passed.

    Attributes:
        kind: its type.
        text: name of the tensor, or the value as text; "nan", "inf" and "-inf" are floats like any other.
    """

    kind: ValueKind
    text: str = ""


@dataclass(frozen=True)
class Argument:
    """One argument of the call.

    Attributes:
        name: as the operator's schema or the signature has it.
        values: one, or as many as a list holds.
        is_list: a list was passed.
    """

    name: str
    values: tuple[Value, ...]
    is_list: bool = False


@dataclass(frozen=True)
class SavedTensor:
    """How a saved tensor lay in memory; safetensors keeps the elements alone.

    Attributes:
        shape: as saved.
        stride: as saved, in elements.
        dtype: without "torch.".
        device: type of the device it was on.
        is_finite: it holds no NaN and no Inf.
        requires_grad: a gradient was asked for.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    is_finite: bool
    requires_grad: bool = False


@dataclass(frozen=True)
class SavedOutput:
    """What was seen in one output of the call as it is saved.

    Attributes:
        name: such as "0", or "grad of bias".
        shape: of the output.
        dtype: without "torch.".
        nan: NaN elements.
        positive_inf: elements that are +Inf.
        negative_inf: elements that are -Inf.
        first: first bad position; null when all is finite.
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
        """No NaN and no Inf in it."""
        return not (self.nan or self.positive_inf or self.negative_inf)


@dataclass(frozen=True)
class RowCut:
    """Which rows of a call that works row by row were kept.

    Attributes:
        rows: positions in the first dim of the whole call, bad ones and a few good ones, ascending.
        num_rows: how many rows the whole call had.
    """

    rows: tuple[int, ...]
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class SavedCall:
    """The suspect call, as it was made in the traced replay.

    Attributes:
        rank: global rank that made it.
        step: step as the training log counts it; null when unknown.
        event: its running number in the trace; null where it has none.
        kind: an operator of torch, or the forward or backward of an autograd Function.
        operator: such as "aten.log.default", or the name of the Function.
        module: global module path; empty outside of any.
        phase: of the step; empty when unknown.
        args: positional arguments; of a Function those of its forward, after the context.
        kwargs: arguments that were passed by name.
        grad_outputs: what a backward was given.
        tensors: the tensors by the names that the arguments give them.
        outputs: what came out.
        rows: which rows were kept; null when the call is whole.
        full_tensors: the whole inputs of a cut call, in `full.safetensors`; empty when they were not kept.
        full_outputs: what came out of them.
        rng: name of the saved generator state; null where nothing is drawn.
        rng_device: type of the device whose generator that is; empty without one.
        cause: code of the likeliest cause; empty before there was a verdict.
        why_not: why the call cannot be run from here; empty when it can.
        is_redacted: its tensors were stripped.
        device: what the device that computed it says of itself.
        versions: versions of the packages that matter.
        notes: what else a reader should know.
        schema_version: form of this file.
    """

    rank: int
    step: int | None = None
    event: int | None = None
    kind: Literal["operator", "forward", "backward"] = "operator"
    operator: str
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
    cause: str = ""
    why_not: str = ""
    is_redacted: bool = False
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION
