"""Module, phase and micro-batch of operators: in a recompute, in engine threads, and where torch cannot tag nodes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from megatron_nanguard.records.trace import RankTrace, TracedPlace
from megatron_nanguard.tracing.places import current_place, nodes
from tests.unit.tracing.faults import NanBackward, clamped_exp, log_of_negative
from tests.unit.tracing.steps import Model, Schedule, batches, trace

DEEPER_THAN_THE_ENGINE_NESTS = 70


def place_of(traced: RankTrace) -> TracedPlace:
    assert traced.broken == ""
    (origin,) = traced.origins
    return origin.place


class Recomputed(Model):
    """Every layer is recomputed in the backward."""

    def __init__(self, inside: Any, use_reentrant: bool) -> None:
        super().__init__(inside)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.use_reentrant)
        return x


@pytest.fixture(params=["tagged", "numbered"])
def how_nodes_are_known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "tagged" and not nodes.can_tag_nodes():
        pytest.skip("this torch has no hook on making nodes")
    monkeypatch.setattr(current_place, "can_tag_nodes", lambda: request.param == "tagged")
    return str(request.param)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_fault_that_only_the_recompute_passes_on_has_that_phase(how_nodes_are_known: str, use_reentrant: bool) -> None:
    torch.manual_seed(0)
    place = place_of(Schedule(Recomputed(clamped_exp, use_reentrant)).run(batches()))
    assert (place.phase, place.microbatch, place.module) == ("recompute", 1, "layers.0")


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_forward_and_its_recompute_are_one_origin(how_nodes_are_known: str, use_reentrant: bool) -> None:
    torch.manual_seed(0)
    traced = Schedule(Recomputed(lambda x: x * log_of_negative(x), use_reentrant)).run(batches())
    place = place_of(traced)
    assert (place.phase, place.module, traced.origins[0].times) == ("forward", "layers.0", 2)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputed_node_belongs_to_its_module(how_nodes_are_known: str, use_reentrant: bool) -> None:
    torch.manual_seed(0)
    place = place_of(Schedule(Recomputed(NanBackward.apply, use_reentrant)).run(batches()))
    assert (place.phase, place.microbatch, place.module, place.node) == (
        "backward",
        1,
        "layers.0",
        "NanBackwardBackward",
    )


def test_backward_operator_belongs_to_the_module_whose_forward_made_its_node(how_nodes_are_known: str) -> None:
    # The square root of 0 is finite, its gradient is not; no code of ours runs in that backward.
    traced = trace(lambda x: torch.sqrt(x * 0) * 0)
    (origin,) = traced.origins
    assert (origin.place.phase, origin.place.module, origin.place.node) == ("backward", "layers.0", "SqrtBackward0")
    # The engine called it, so it has no source line.
    assert origin.place.source_line is None
    assert origin.place.forward_operator == "sqrt"
    assert origin.place.forward_line is not None
    assert origin.place.forward_line.rpartition("/")[2].startswith("test_current_place.py:")


class Nested(torch.autograd.Function):
    """A backward that runs a backward, `depth` times; the innermost one recomputes the block with the fault."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Any, depth: int, threads: list[int]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.block, ctx.depth, ctx.threads = block, depth, threads
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            if ctx.depth:
                out = Nested.apply(x, ctx.block, ctx.depth - 1, ctx.threads)
            else:
                ctx.threads.append(threading.get_ident())
                out = ctx.block(x)
        torch.autograd.backward(out, grad)
        return x.grad, None, None, None


class Deep(Model):
    """Runs the first layer below many nested backwards."""

    threads: list[int]

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return self.layers[1](Nested.apply(x, self.layers[0], DEEPER_THAN_THE_ENGINE_NESTS, self.threads))


@pytest.mark.parametrize(
    ("inside", "phase", "operator"), [(NanBackward.apply, "backward", "log"), (clamped_exp, "recompute", "exp")]
)
def test_backward_in_a_second_thread_is_attributed_rightly(
    how_nodes_are_known: str, inside: Any, phase: str, operator: str
) -> None:
    torch.manual_seed(0)
    model = Deep(inside)
    model.threads = []
    traced = Schedule(model).run(batches())
    (origin,) = traced.origins
    assert set(model.threads).isdisjoint([threading.get_ident()])
    assert (origin.operator, origin.place.phase, origin.place.microbatch, origin.place.module) == (
        operator,
        phase,
        1,
        "layers.0",
    )


def test_the_record_says_if_torch_cannot_tag_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_place, "can_tag_nodes", lambda: False)
    assert trace(torch.tanh).labels == (
        "Functions written in C++ were not followed: this torch has no hook on making nodes",
    )


def test_weight_gradient_is_named_after_its_parameter() -> None:
    class Wgrad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(weight)
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            return grad, torch.log(-ctx.saved_tensors[0].abs() - 1)

    model = Model()
    model.layers[0].inside = lambda x: Wgrad.apply(x, model.layers[0].linear.weight)
    traced = Schedule(model).run(batches())
    (origin,) = traced.origins
    assert (origin.operator, origin.outputs[0].name) == ("log", "grad of weight")
    assert [sink.names for sink in traced.sinks] == [("layers.0.linear.weight",)]
