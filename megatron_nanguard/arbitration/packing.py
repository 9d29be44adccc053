"""Turn the arguments of a call into records, and collect its tensors by name."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import Parameter

from megatron_nanguard.arbitration.object_copies import plain_attributes
from megatron_nanguard.arbitration.repro import count
from megatron_nanguard.records.suspect_call import Argument, SavedOutput, SavedTensor, Value, ValueKind
from megatron_nanguard.tensor_names import dtype_name, is_wrapper

_DTYPES = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64 int64 int32 int16 int8 uint8 bool"
SAVABLE = frozenset(getattr(torch, name) for name in _DTYPES.split() if hasattr(torch, name))
"""Dtypes that safetensors can hold."""


class CannotSave(Exception):
    """A call cannot be saved; says why."""


class Packer:
    """Turns values into records and collects the tensors, without copying them."""

    def __init__(self) -> None:
        """Start without tensors."""
        self.tensors: dict[str, Tensor] = {}
        self.left_out: dict[str, str] = {}
        """Arguments of a Function that no file holds, with the reason."""

    def operator(
        self, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
        """Positional and keyword arguments of an operator, with the names of its schema.

        Raises:
            CannotSave: a value cannot be written to a file.
        """
        names = [argument.name for argument in func._schema.arguments]
        positional = tuple(self.argument(name, value) for name, value in zip(names, args, strict=False))
        return positional, tuple(self.argument(name, value) for name, value in kwargs.items())

    def of_function(self, name: str, value: object) -> Argument:
        """One argument of an autograd Function. What no file holds is left out, and `left_out` says why."""
        is_list = isinstance(value, list | tuple)
        inside = {f"{name}.{index}": one for index, one in enumerate(value)} if isinstance(value, list | tuple) else {}
        values = inside if is_list else {name: value}
        return Argument(name, tuple(self._value_or_object(*pair) for pair in values.items()), is_list=is_list)

    def _value_or_object(self, name: str, value: object) -> Value:
        try:
            return self._value(name, value)
        except CannotSave as error:
            self.left_out[name] = str(error)
            if isinstance(value, Tensor) and hasattr(value, "dequantize"):
                # A reference computes with its plain values; the kernel itself needs the tensor as it is.
                with contextlib.suppress(Exception):
                    self.tensors[name] = value.detach().dequantize()
            return Value("object", type(value).__name__)

    def argument(self, name: str, value: object) -> Argument:
        """One argument.

        Raises:
            CannotSave: its value cannot be written to a file.
        """
        if isinstance(value, (list, tuple)):
            values = (self._value(f"{name}.{index}", item) for index, item in enumerate(value))
            return Argument(name, tuple(values), is_list=True)
        return Argument(name, (self._value(name, value),))

    def _value(self, name: str, value: object) -> Value:
        if isinstance(value, Tensor):
            return self._tensor(name, value)
        if isinstance(value, torch.Generator):
            self.tensors[name] = value.get_state()
            return Value("generator", name)
        if value is None:
            return Value("none")
        if isinstance(value, bool):
            return Value("bool", str(value).lower())
        kind = _KINDS.get(type(value))
        if kind is None:
            raise CannotSave(f"argument {name} is a {type(value).__name__}, which has no form in a file")
        return Value(kind, str(value).removeprefix("torch."))

    def _tensor(self, name: str, tensor: Tensor) -> Value:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or is_wrapper(tensor):
            raise CannotSave(f"argument {name} is not a plain dense tensor")
        if tensor.dtype not in SAVABLE:
            raise CannotSave(f"argument {name} is {tensor.dtype}, which safetensors does not hold")
        self.tensors[name] = tensor
        return Value("tensor", name)


_KINDS: dict[type, ValueKind] = {
    int: "int",
    float: "float",
    complex: "complex",
    str: "str",
    torch.dtype: "dtype",
    torch.device: "device",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
}


def check_size(tensors: Mapping[str, Tensor], cap_bytes: int, why: str = "") -> None:
    """Refuse inputs that are too large to be kept.

    Args:
        tensors: the inputs.
        cap_bytes: limit.
        why: goes into the message after "the call"; ends with a space.
    Raises:
        CannotSave: they are larger.
    """
    size = num_bytes(tensors)
    if size > cap_bytes:
        raise CannotSave(f"the call {why}has {size} bytes of inputs, the limit is {cap_bytes}")


def num_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Size of the elements of all tensors; memory that two views share counts twice."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def host_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to host memory; the order of their dims in memory is kept.

    Sync: waits for the device.
    """
    return {name: tensor.detach().clone(memory_format=torch.preserve_format).cpu() for name, tensor in tensors.items()}


def describe_tensors(
    copies: Mapping[str, Tensor], originals: Mapping[str, Tensor], unwritten: Collection[str] = ()
) -> dict[str, SavedTensor]:
    """Describe each copy for `call.json`; device and requires_grad are those of the original.

    Args:
        copies: in host memory.
        originals: by the same names.
        unwritten: names of those that nothing had been written into.
    """
    return {
        name: SavedTensor(
            shape=tuple(copy.shape),
            stride=tuple(copy.stride()),
            dtype=dtype_name(copy.dtype),
            device=originals[name].device.type,
            is_finite=is_finite(copy),
            requires_grad=originals[name].requires_grad,
            is_parameter=isinstance(originals[name], Parameter),
            is_unwritten=name in unwritten,
            attributes=tuple(_attributes(originals[name])),
        )
        for name, copy in copies.items()
    }


def _attributes(tensor: Tensor) -> Iterator[Argument]:
    """Yield what a kernel may ask of a parameter; its gradient begins with zeros, so that no file has to hold it."""
    if isinstance(tensor, Parameter):
        for name, value in plain_attributes(tensor):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield Argument(name, (Value("bool" if isinstance(value, bool) else _KINDS[type(value)], text),))
        main_grad = getattr(tensor, "main_grad", None)
        if isinstance(main_grad, Tensor):
            yield Argument("main_grad", (Value("zeros", dtype_name(main_grad.dtype)),))


def describe_output(name: str, tensor: Tensor) -> SavedOutput:
    """Count the NaN and Inf of one output.

    Sync: waits for the device.
    """
    nan, positive, negative, first = count(tensor)
    at = None if first is None else tuple(first)
    return SavedOutput(name, tuple(tensor.shape), dtype_name(tensor.dtype), nan, positive, negative, at)


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor has neither NaN nor Inf.

    Sync: waits for the device.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    values = tensor.float() if tensor.element_size() == 1 else tensor
    return bool(torch.isfinite(values).all())
