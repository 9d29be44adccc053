"""Name tensors from before the trace: parameters, their gradients and buffers of modules, by their addresses."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.nn import Module, Parameter

from megatron_nanguard.megatron_api.buffers import local_gradient
from megatron_nanguard.records.trace import GRADIENT_OF
from megatron_nanguard.tensor_names import dtype_name
from megatron_nanguard.tracing.recording.lineage import memory_of


class ModelMemory(NamedTuple):
    """A range of memory that holds a parameter, a gradient or a buffer of the model.

    Attributes:
        start: address of its first byte.
        end: address after its last.
        name: what it is, such as "parameter decoder.layers.0.mlp.linear_fc1.weight".
        module: global path.
        is_parameter: a parameter or its gradient, where an Inf is never intended.
        is_gradient: the gradient of a parameter.
    """

    start: int
    end: int
    name: str
    module: str
    is_parameter: bool
    is_gradient: bool = False


class ExternalTensors:
    """Finds out which tensors lie in the memory of the model."""

    def __init__(self, chunks: Sequence[Module], names: Mapping[Module, str], params: Mapping[Parameter, str]) -> None:
        self._chunks, self._names, self._params = chunks, names, params
        gradients = (local_gradient(param) for param in params)
        tensors = (*map(memory_of, params), *(gradient.data for gradient in gradients if gradient is not None))
        self._by_start: list[ModelMemory] = []
        self._num_named = 0
        self._storages = {tensor.untyped_storage()._cdata for tensor in tensors if tensor is not None}

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor shares a storage with a parameter or gradient as they were at the start of the trace."""
        return tensor.untyped_storage()._cdata in self._storages

    def owner(self, tensor: Tensor, element: int = 0) -> ModelMemory | None:
        """Return the parameter, gradient or buffer that an element of a tensor lies in; None if it lies in none.

        Args:
            tensor: contiguous, unless the element is the first.
            element: number of the element in memory order.
        """
        # The tracer of a callable adds parameters while it meets them.
        if len(self._params) != self._num_named:
            self._num_named = len(self._params)
            self._by_start = sorted(self._owned(), key=lambda owned: owned.start)
        address = tensor.data_ptr() + element * tensor.element_size()
        index = bisect_right(self._by_start, address, key=lambda owned: owned.start) - 1
        owned = self._by_start[index] if index >= 0 else None
        return owned if owned is not None and address < owned.end else None

    def _owned(self) -> Iterator[ModelMemory]:
        for param, name in self._params.items():
            path = module_of(name)
            yield from _owned(param, f"parameter {name}", path, is_parameter=True)
            gradient = local_gradient(param)
            if gradient is not None:
                yield from _owned(gradient.data, f"{GRADIENT_OF}{name}", path, is_parameter=True, is_gradient=True)
        for chunk in self._chunks:
            for module in chunk.modules():
                path = self._names.get(module, "")
                for leaf, buffer in module._buffers.items():
                    if buffer is not None:
                        yield from _owned(buffer, f"buffer {path}.{leaf}", path, is_parameter=False)


def module_of(parameter: str) -> str:
    """Return the path of the module that a parameter belongs to."""
    return parameter.rpartition(".")[0]


def describe(tensor: Tensor) -> str:
    """Words for a tensor that is not in the memory of the model."""
    return f"tensor {tuple(tensor.shape)} {dtype_name(tensor.dtype)}"


def _owned(
    tensor: Tensor, name: str, module: str, is_parameter: bool, is_gradient: bool = False
) -> Iterator[ModelMemory]:
    memory = memory_of(tensor)
    if memory is not None:
        start, num_bytes = memory.data_ptr(), memory.numel() * memory.element_size()
        yield ModelMemory(start, start + num_bytes, name, module, is_parameter, is_gradient)
