"""Arguments of Functions that cannot be looked at, or only inside of them: each costs itself alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import Function

from megatron_nanguard.tracing.callable import trace_nan
from tests.unit.tracing.unseen_kernels import Call, Layer, between, kernel, memory, nan_made_visibly, places


@pytest.fixture(autouse=True)
def _without_warnings() -> Iterator[None]:
    """Torch warns that sparse CSR and nested tensors are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class TakesMore(Function):
    """Copies its first argument past the dispatcher, and keeps the others on its context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *more: Any) -> Tensor:
        ctx.more = more
        return kernel(torch.empty_like(x), memory(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return kernel(torch.empty_like(grad), memory(grad)), *[None for _ in ctx.more]


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.empty(3)


def freed() -> Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


class Secretive:
    """Raises when it is asked for its attributes."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return super().__getattribute__(name)
        raise RuntimeError(f"no {name}")


class Loop:
    """Refers to itself."""

    def __init__(self) -> None:
        self.loop = self


UNUSUAL: dict[str, Callable[[], Any]] = {
    "sparse COO": lambda: torch.eye(4).to_sparse(),
    "sparse CSR": lambda: torch.eye(4).to_sparse_csr(),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "oneDNN": lambda: torch.ones(4, 4).to_mkldnn(),
    "meta": lambda: torch.ones(4, device="meta"),
    "fake": fake,
    "freed": freed,
    "fp8": lambda: torch.ones(4).to(torch.float8_e4m3fn),
    "complex": lambda: torch.ones(4, dtype=torch.complex64),
    "conjugate": lambda: torch.ones(4, dtype=torch.complex64).conj(),
    "empty": lambda: torch.ones(0),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    "an object that raises": Secretive,
    "an object that refers to itself": Loop,
    "a long list": lambda: list(range(20_000)),
}


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("is_bad", [True, False])
def test_an_innocent_argument_leaves_the_origin_exact(kind: str, is_bad: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return TakesMore.apply(x, UNUSUAL[kind](), {"inside": [UNUSUAL[kind]()]})

    model = between(Layer("forward" if is_bad else ""), Call(function))
    assert places(model) == ([("Linear.forward", "1")] if is_bad else [])


class Frees(Function):
    """Frees its input and what it returns beside its output, and in the backward what it kept on its context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spoils: bool) -> Any:
        ctx.kept = x * 2
        unused = torch.empty_like(x)
        for tensor in (x, unused):
            tensor.untyped_storage().resize_(0)
        return kernel(torch.empty_like(x), 1.0, spoils=spoils), unused

    @staticmethod
    def backward(ctx: Any, grad: Tensor, unused: Tensor) -> Any:
        ctx.kept.untyped_storage().resize_(0)
        return kernel(torch.empty_like(grad), memory(grad)), None


@pytest.mark.parametrize("spoils", [True, False])
def test_what_a_function_frees_costs_itself_alone(spoils: bool) -> None:
    def function(x: Tensor) -> Tensor:
        out, _ = Frees.apply(torch.sin(x), spoils)
        return out

    assert places(between(Call(function), Layer())) == ([("Frees.forward", "1")] if spoils else [])


class Quantized(Tensor):
    """Wraps the tensor that has its values, as the fp8 tensors of Transformer Engine do."""

    @staticmethod
    def __new__(cls, data: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)

    def __init__(self, data: Tensor) -> None:
        self._data = data

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*(one._data if isinstance(one, Quantized) else one for one in args), **(kwargs or {}))


class MultipliesByQuantized(Function):
    """Multiplies by a wrapped tensor, which it saves or keeps as an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, quantized: Quantized) -> Tensor:
        ctx.quantized = quantized
        return kernel(torch.empty_like(x), memory(x) * memory(quantized._data))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return kernel(torch.empty_like(grad), memory(grad) * memory(ctx.quantized._data)), None


@pytest.mark.parametrize("is_bad", [True, False])
def test_a_nan_in_a_wrapped_tensor_is_followed(is_bad: bool) -> None:
    def function(x: Tensor) -> Tensor:
        inner = nan_made_visibly(x) if is_bad else torch.sin(x.detach())
        return MultipliesByQuantized.apply(x, Quantized(inner))

    assert places(between(Call(function))) == ([("log", "1")] if is_bad else [])


class ForTransforms(Function):
    """A Function that torch.func can transform."""

    @staticmethod
    def forward(x: Tensor, spoils: bool) -> Tensor:
        return kernel(torch.empty_like(x), 1.0, spoils=spoils)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.saved_tensors[0], None


@pytest.mark.parametrize("spoils", [True, False])
def test_a_function_under_a_transform_is_a_region(spoils: bool) -> None:
    x = torch.ones(2, 4)
    trace = trace_nan(torch.func.grad(lambda x: ForTransforms.apply(x * 1, spoils).sum()), x)
    assert trace.record.broken == ""
    assert [origin.operator for origin in trace.origins] == (["ForTransforms.forward"] if spoils else [])
