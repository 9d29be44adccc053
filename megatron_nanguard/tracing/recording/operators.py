"""What the schema of an operator says: which arguments it reads, which it writes, and how the tracer treats it."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor
from torch._ops import OperatorBase, OpOverload

from megatron_nanguard.tensor_names import tensors_in
from megatron_nanguard.tracing.recording.lineage import memory_of

NamedTensor = tuple[str, "int | None", Tensor]
"""Name of the argument, index in the list it lies in (None outside of a list), and the tensor."""


class CallKind(enum.Enum):
    """How the tracer treats a call.

    Attributes:
        OPERATOR: reads values and writes values.
        VIEW: returns the memory it got, or no tensor at all; leaves no event.
        EMPTY: returns memory without values.
        MESSAGE: starts a collective, send or receive.
    """

    OPERATOR = "operator"
    VIEW = "view"
    EMPTY = "empty"
    MESSAGE = "message"


_EMPTY: Final = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)
_FUNCTIONAL: Final = "_c10d_functional::"
_NO_EVENT: Final = frozenset(
    (
        *("aten::_local_scalar_dense", "aten::record_stream", "aten::resize_", "aten::set_", "prim::device"),
        # They return what they get. Waiting is not reading: the result of a message is complete only after it.
        *(f"{_FUNCTIONAL}wait_tensor", f"{_FUNCTIONAL}_wrap_tensor_autograd"),
    )
)
_OVERWRITES_SELF: Final = frozenset(
    f"aten::{prefix}{name}"
    for prefix in ("", "_foreach_")
    for name in ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_")
)
_ADDS_TO_FIRST: Final = frozenset(f"aten::{name}" for name in ("addmm", "baddbmm", "addbmm", "addmv", "addr"))
"""With beta=0 they do not read the first argument. Megatron's attention passes memory without values there."""


@dataclass(frozen=True)
class Operator:
    """One operator.

    Attributes:
        name: such as "aten::add_".
        label: such as "add_.Tensor".
        kind: how the tracer treats a call.
        arguments: names by position.
        written: positions of the arguments it writes.
        overwritten: names of the arguments it writes without reading them.
        parallel: it makes the n-th output from the n-th elements of its argument lists only.
    """

    name: str
    label: str
    kind: CallKind
    arguments: tuple[str, ...] = ()
    written: tuple[int, ...] = ()
    overwritten: frozenset[str] = frozenset()
    parallel: bool = False

    @classmethod
    def of(cls, func: OperatorBase) -> Operator:
        """Read the schema; a higher-order operator has none and counts as one operator."""
        if not isinstance(func, OpOverload):
            return cls(str(func), str(func), CallKind.OPERATOR)
        schema = func._schema
        written = [(i, a) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
        base = schema.name.partition("::")[2]
        return cls(
            name=schema.name,
            label=base + (f".{schema.overload_name}" if schema.overload_name else ""),
            kind=_kind(schema, bool(written)),
            arguments=tuple(a.name for a in schema.arguments),
            written=tuple(i for i, _ in written),
            overwritten=frozenset(a.name for _, a in written if a.kwarg_only or schema.name in _OVERWRITES_SELF),
            parallel=base.startswith("_foreach_"),
        )

    @property
    def base(self) -> str:
        """The name without namespace and overload, such as "add_"."""
        return self.name.partition("::")[2]

    @property
    def is_functional(self) -> bool:
        """Whether it is a message that returns what arrives, instead of writing it into a buffer."""
        return self.kind is CallKind.MESSAGE and self.name.startswith(_FUNCTIONAL)

    def reads(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[NamedTensor]:
        """Yield the memory of every tensor that the call reads."""
        ignored = self.overwritten
        if self.name in _ADDS_TO_FIRST and kwargs.get("beta", 1) == 0:
            ignored = ignored | {self.arguments[0]}
        for name, value in self._named(args, kwargs):
            if name not in ignored:
                for path, tensor in tensors_in(value):
                    memory = memory_of(tensor)
                    if memory is not None:
                        yield name, path[0] if path else None, memory

    def bad_numbers(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        """Yield argument name and value of the plain numbers that are NaN or Inf."""
        for name, value in self._named(args, kwargs):
            for number in value if isinstance(value, list | tuple) else [value]:
                if isinstance(number, float) and not math.isfinite(number):
                    yield name, number

    def writes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
        """Yield the tensors that the call changes in place."""
        for index in self.written:
            name = self.arguments[index]
            value = args[index] if index < len(args) else kwargs.get(name)
            for _, tensor in tensors_in(value):
                yield tensor

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for index, value in enumerate(args):
            yield (self.arguments[index] if index < len(self.arguments) else str(index)), value
        yield from kwargs.items()


def has_bad_constant(values: object) -> bool:
    """Whether a plain number among the arguments is NaN or Inf, such as the -inf of a mask."""
    if isinstance(values, float):
        return not math.isfinite(values)
    return isinstance(values, list | tuple) and any(map(has_bad_constant, values))


def _kind(schema: Any, writes: bool) -> CallKind:
    if schema.name in _NO_EVENT:
        return CallKind.VIEW
    if schema.name.startswith(("c10d::", _FUNCTIONAL)):
        return CallKind.MESSAGE
    if schema.name in _EMPTY:
        return CallKind.EMPTY
    is_view = not writes and schema.returns and all(r.alias_info is not None for r in schema.returns)
    return CallKind.VIEW if is_view else CallKind.OPERATOR


def is_empty(func: object) -> bool:
    """Whether an operator returns memory without values."""
    return isinstance(func, OpOverload) and func._schema.name in _EMPTY
