"""Tensors without strided memory of their own, and foreign modes: none of them ends the trace or hides an origin."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_nanguard.tracing.callable import NanTrace, trace_nan
from tests.unit.tracing.faults import log_of_negative
from tests.unit.tracing.steps import Model, Schedule, batches


class UsersMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operator that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def in_a_mode(x: Tensor) -> Tensor:
    with UsersMode():
        return x * 2


def beside_fake_tensors(x: Tensor) -> Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.ones(4, 4) @ torch.ones(4, 4)
    return x


def freed() -> Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def beside_freed_memory(x: Tensor) -> Tensor:
    freed().view(-1)
    return x


def nested(x: Tensor, layout: torch.layout) -> Any:
    return torch.nested.nested_tensor([x[:2], x[2:]], layout=layout)


UNUSUAL: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse COO": lambda x: torch.sparse.mm(x.to_sparse(), torch.eye(4)),
    "sparse CSR": lambda x: x.to_sparse_csr() @ torch.eye(4),
    "sparse BSR": lambda x: x.to_sparse_bsr((2, 2)) @ torch.eye(4),
    "nested": lambda x: torch.nested.to_padded_tensor(nested(x, torch.strided) * 2, 0.0),
    "jagged": lambda x: (nested(x, torch.jagged) * 2).values(),
    "oneDNN": lambda x: x.to_mkldnn().to_dense(),
    "complex": lambda x: torch.fft.fft(x).abs(),
    "fp8": lambda x: x.to(torch.float8_e4m3fn).float(),
    "quantised": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
    "vmap": lambda x: torch.func.vmap(lambda row: row * 2)(x),
    "the user's own mode": in_a_mode,
    "fake tensors": beside_fake_tensors,
    "freed memory": beside_freed_memory,
}
HIDES_VALUES = {"oneDNN", "quantised"}
"""What cannot be looked at, and what makes finite numbers of NaN: neither carries the NaN on where it can be seen."""


@pytest.fixture(autouse=True)
def _without_warnings() -> Iterator[None]:
    """Torch warns that sparse CSR and nested tensors are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def traced(function: Callable[[], Tensor]) -> NanTrace:
    trace = trace_nan(function)
    assert trace.record.broken == ""
    return trace


def operators(trace: NanTrace) -> list[str]:
    return [origin.operator for origin in trace.record.origins]


@pytest.mark.parametrize("kind", UNUSUAL)
def test_an_innocent_one_leaves_the_origin_elsewhere_exact(kind: str) -> None:
    x = torch.ones(4, 4)
    trace = traced(lambda: torch.log(-x).sum() + UNUSUAL[kind](x).sum())
    assert operators(trace) == ["log"]


@pytest.mark.parametrize("kind", UNUSUAL)
def test_without_a_fault_nothing_is_found(kind: str) -> None:
    assert operators(traced(lambda: UNUSUAL[kind](torch.ones(4, 4)).sum())) == []


@pytest.mark.parametrize("kind", [kind for kind in UNUSUAL if kind not in HIDES_VALUES])
def test_a_nan_is_followed_through_it(kind: str) -> None:
    x = torch.ones(4, 4)
    assert operators(traced(lambda: UNUSUAL[kind](torch.log(-x)).sum())) == ["log"]


def test_a_mode_of_the_user_sees_none_of_our_operators() -> None:
    x, outer, inner = torch.ones(4), UsersMode(), UsersMode()

    def function() -> Tensor:
        with inner:
            return torch.log(-x) * 2

    with outer:
        assert operators(traced(function)) == ["log"]
    assert inner.seen == ["aten.neg.default", "aten.log.default", "aten.mul.Tensor"]
    assert outer.seen == inner.seen


def test_the_sparse_gradient_of_an_embedding_is_looked_at() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)

    def step() -> Tensor:
        loss = (table(torch.tensor([1, 2])).sum() * 0).sqrt()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    trace = traced(step)
    # The slope of a square root at 0 is Inf, and its product with the 0 that multiplied the rows is NaN.
    assert operators(trace) == ["div.Tensor"]
    assert {sink.pattern for sink in trace.record.sinks} == {"nan"}


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize(
    "new", [lambda: torch.eye(4).to_sparse(), freed, lambda: torch.ones(2, dtype=torch.complex64).conj()]
)
def test_a_collective_on_an_unusual_tensor_costs_itself_alone(new: Callable[[], Tensor]) -> None:
    def function() -> Tensor:
        reduced = new()
        with contextlib.suppress(RuntimeError):  # Gloo cannot reduce all of them.
            dist.all_reduce(reduced)
        return torch.log(-torch.ones(4))

    assert operators(traced(function)) == ["log"]


@pytest.mark.usefixtures("world_of_one")
def test_a_gathered_tensor_that_was_freed_again_costs_itself_alone() -> None:
    gathered = torch.empty(4)

    def function() -> Tensor:
        dist.all_gather_single(gathered, torch.ones(4))
        gathered.untyped_storage().resize_(0)
        return torch.log(-torch.ones(4))

    assert operators(traced(function)) == ["log"]


@pytest.mark.parametrize("is_sparse", [True, False])
def test_a_gradient_that_cannot_be_looked_at_leaves_the_origin_exact(is_sparse: bool) -> None:
    model = Model(log_of_negative)
    schedule = Schedule(model, microbatch=0)
    parameter = next(model.parameters()).requires_grad_(False)

    def loss_of(out: Tensor) -> Tensor:
        if is_sparse:
            parameter.main_grad = parameter.main_grad.to_sparse()
        else:
            parameter.main_grad.untyped_storage().resize_(0)
        return out.sum()

    record = schedule.run(batches(1), loss_of)
    assert record.broken == ""
    assert [origin.operator for origin in record.origins] == ["log"]
