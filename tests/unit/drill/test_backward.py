"""Phase backward: the gradient of a module's input, in the micro-batch whose forward built the graph."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module
from torch.utils.checkpoint import checkpoint

from tests.unit.drill.models import X0, X1, Chain, Scale, fired, grads, plant, train


def reentrant(run: Any, x: Tensor) -> Any:
    return checkpoint(run, x, use_reentrant=True)


def early_stop(run: Any, x: Tensor) -> Any:
    return checkpoint(run, x, use_reentrant=False)


CALLS = {"direct": lambda run, x: run(x), "reentrant": reentrant, "non-reentrant": early_stop}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_the_gradient_of_the_input_is_poisoned_and_the_modules_own_is_not(call: Any) -> None:
    model = Chain(call)
    drills = plant("nan@step=1,rank=0,mb=0,phase=backward,module=second,index=1", model)
    train(drills, model, step=1)
    first, second = grads(model).values()
    assert first[0] == 5.0
    assert math.isnan(first[1])
    assert second == [2.0, 6.0]
    assert list(fired(drills).values()) == [1]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_the_micro_batch_is_that_of_the_forward(call: Any) -> None:
    model = Chain(call)
    drills = plant("inf@step=1,rank=0,mb=1,phase=backward,module=second,index=0", model)
    drills.step_begins(1)
    outputs = [model(torch.tensor(x, requires_grad=True)) for x in (X0, X1, X0)]
    seen = []
    for output in outputs:
        model.zero_grad()
        output.sum().backward()
        seen.append(grads(model)["first.weight"])
    assert seen == [[5.0, 14.0], [math.inf, 28.0], [5.0, 14.0]]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_forward_and_backward_alternating_as_in_the_steady_state_of_1f1b(call: Any) -> None:
    model = Chain(call)
    drills = plant("inf@step=1,rank=0,mb=2,phase=backward,module=second,index=0", model)
    drills.step_begins(1)
    waiting = [model(torch.tensor(X0, requires_grad=True))]
    seen = []
    for _ in range(3):
        waiting.append(model(torch.tensor(X0, requires_grad=True)))
        model.zero_grad()
        waiting.pop(0).sum().backward()
        seen.append(grads(model)["first.weight"])
    assert seen == [[5.0, 14.0], [5.0, 14.0], [math.inf, 14.0]]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_stale_repeats_the_gradient_of_the_micro_batch_before(call: Any) -> None:
    model = Chain(call)
    drills = plant("stale@step=1,rank=0,mb=1,phase=backward,module=second", model)
    train(drills, model, step=1, inputs=(X0, X1))
    # d h = [5, 7] in both, though the second loss counts tenfold: [5 + 3 * 5, 14 + 4 * 7]
    assert grads(model) == {"first.weight": [20.0, 42.0], "second.weight": [62.0, 126.0]}


def test_once_leaves_the_replay_clean() -> None:
    model = Chain()
    drills = plant("nan@step=1,rank=0,phase=backward,module=second,once", model)
    train(drills, model, step=1, inputs=(X0, X1))
    assert math.isnan(grads(model)["first.weight"][0])
    train(drills, model, step=1)
    assert grads(model) == {"first.weight": [5.0, 14.0], "second.weight": [2.0, 6.0]}
    assert list(fired(drills).values()) == [1]


class Keyword(Module):
    """Calls by keyword, as Megatron's transformer block calls its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scale(2.0, 3.0)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x=x)
        return output


def test_an_input_given_by_keyword_is_found() -> None:
    model = Keyword()
    drills = plant("nan@step=1,rank=0,phase=backward,module=inner,index=0", model)
    drills.step_begins(1)
    x = torch.tensor(X0, requires_grad=True)
    model(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isnan().tolist() == [True, False]


def test_a_module_without_an_input_to_poison_says_so() -> None:
    model = torch.nn.Sequential(Embedding(4, 2))
    drills = plant("nan@step=1,rank=0,phase=backward,module=0", model)
    drills.step_begins(1)
    model(torch.tensor([1, 2])).sum().backward()
    (outcome,) = drills.record().drills
    assert (outcome.fired, outcome.why_not) == (0, "the module has no input that takes a gradient")


class InPlace(Module):
    """Writes into its input, as a fused activation may."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2.0)


def test_a_module_may_still_write_into_its_input() -> None:
    model = torch.nn.Sequential(Scale(2.0, 3.0), InPlace())
    drills = plant("nan@step=1,rank=0,phase=backward,module=1,index=0", model)
    drills.step_begins(1)
    output = model(torch.tensor(X0))
    assert output.tolist() == [4.0, 12.0]
    output.sum().backward()
    gradient = grads(model)["0.weight"]
    assert math.isnan(gradient[0])
    assert gradient[1] == 4.0


class Attention(Module):
    """Uses its input three times, and stands beside a residual: order of additions matters in the last bit."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = Linear(16, 16), Linear(16, 16), Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.q(x) @ self.k(x).T, dim=-1) @ self.v(x)


class Residual(Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.norm = Linear(16, 16)
        self.attention = Attention()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        output: Tensor = h + self.attention(h)
        return output


@pytest.mark.parametrize(
    "spec",
    [
        "nan@step=3,rank=0,phase=backward,module=attention",
        "nan@step=2,rank=0,mb=5,phase=backward,module=attention",
        "nan@step=3,rank=0,phase=forward,module=attention",
        "stale@step=3,rank=0,phase=forward,module=attention",
        "nan@step=3,rank=0,phase=wgrad,param=attention.q.weight",
        "stale@step=3,rank=0,phase=reduced,param=attention.q.weight",
    ],
)
def test_executions_that_are_not_poisoned_keep_every_bit(spec: str) -> None:
    drilled, twin = Residual(), Residual()
    drills = plant(spec, drilled)
    torch.manual_seed(11)
    inputs = [torch.randn(8, 16) for _ in range(4)]
    for step in (1, 2):
        drills.step_begins(step)
        for x in inputs:
            for model in (drilled, twin):
                model(x).square().sum().backward()
        drills.before_reduction(list(drilled.parameters()))
        drills.after_reduction()
        drills.step_ends()
        for ours, theirs in zip(drilled.parameters(), twin.parameters(), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            assert torch.equal(ours.grad, theirs.grad)
    assert list(fired(drills).values()) == [0]
