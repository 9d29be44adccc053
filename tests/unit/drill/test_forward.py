"""Phase forward: a module hands on wrong values in one micro-batch of one step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import Module

from tests.unit.drill.models import X0, X1, Chain, Scale, fired, grads, plant, train

HEALTHY = {"first.weight": [5.0, 14.0], "second.weight": [2.0, 6.0]}


def test_the_output_is_poisoned_and_its_gradient_passes() -> None:
    model = Chain()
    drills = plant("nan@step=2,rank=0,phase=forward,module=first,index=1", model)
    train(drills, model, step=2)
    assert grads(model)["first.weight"] == [5.0, 14.0]
    assert grads(model)["second.weight"] == [2.0, pytest.approx(float("nan"), nan_ok=True)]
    assert fired(drills) == {"nan@step=2,rank=0,phase=forward,module=first,index=1": 1}


def test_other_steps_are_left_alone() -> None:
    model = Chain()
    drills = plant("nan@step=2-3,rank=0,phase=forward,module=first", model)
    seen = []
    for step in range(1, 6):
        train(drills, model, step)
        seen.append(grads(model) == HEALTHY)
    assert seen == [True, False, False, True, True]


def test_only_the_micro_batch_asked_for_is_poisoned() -> None:
    model = Chain()
    drills = plant("inf@step=1,rank=0,mb=1,phase=forward,module=first,index=0", model)
    model.zero_grad()
    drills.step_begins(1)
    outputs = [model(torch.tensor(x)).tolist() for x in (X0, X1, X0)]
    assert outputs == [[10.0, 42.0], [float("inf"), 84.0], [10.0, 42.0]]


def test_an_evaluation_between_steps_neither_fires_nor_counts() -> None:
    model = Chain()
    drills = plant("inf@step=*,rank=0,mb=0,phase=forward,module=first,index=0", model)
    train(drills, model, step=1)
    assert model(torch.tensor(X0)).tolist() == [10.0, 42.0]
    drills.step_begins(2)
    assert model(torch.tensor(X0)).tolist() == [float("inf"), 42.0]
    assert model(torch.tensor(X0)).tolist() == [10.0, 42.0]


def test_stale_repeats_the_micro_batch_before() -> None:
    model = Chain()
    drills = plant("stale@step=1,rank=0,mb=1,phase=forward,module=first", model)
    drills.step_begins(1)
    assert [model(torch.tensor(x)).tolist() for x in (X0, X1, X1)] == [[10.0, 42.0], [10.0, 42.0], [30.0, 84.0]]


def test_stale_repeats_the_last_micro_batch_of_the_step_before() -> None:
    model = Chain()
    drills = plant("stale@step=2,rank=0,mb=0,phase=forward,module=first", model)
    train(drills, model, step=1, inputs=(X0, X1))
    drills.step_begins(2)
    assert model(torch.tensor(X0)).tolist() == [30.0, 84.0]


def test_stale_without_an_execution_before_says_so() -> None:
    model = Chain()
    drills = plant("stale@step=1,rank=0,mb=0,phase=forward,module=first", model)
    train(drills, model, step=1)
    assert grads(model) == HEALTHY
    (outcome,) = drills.record().drills
    assert outcome.why_not == "step 1: there was no execution before this one whose values could come back"


def test_a_replay_fires_again_and_once_does_not() -> None:
    for suffix, times in (("", 2), (",once", 1)):
        model = Chain()
        drills = plant(f"nan@step=1,rank=0,mb=0,phase=forward,module=first{suffix}", model)
        train(drills, model, step=1)
        train(drills, model, step=1)
        assert list(fired(drills).values()) == [times]
        assert (grads(model) == HEALTHY) is bool(suffix)


class WithBias(Module):
    """Returns a tuple, as Megatron's linear layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scale(2.0, 3.0)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.inner(x), None


class Unpacks(Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = WithBias()

    def forward(self, x: Tensor) -> Tensor:
        output, bias = self.mlp(x)
        assert bias is None
        assert isinstance(output, Tensor)
        return output


def test_the_first_tensor_of_a_tuple_is_poisoned() -> None:
    model = Unpacks()
    drills = plant("-inf@step=1,rank=0,phase=forward,module=mlp,index=1", model)
    drills.step_begins(1)
    assert model(torch.tensor(X0)).tolist() == [2.0, float("-inf")]


def test_detach_takes_the_hooks_off() -> None:
    model = Chain()
    drills = plant("nan@step=*,rank=0,phase=forward,module=first", model)
    drills.step_begins(1)
    drills.detach()
    assert model(torch.tensor(X0)).tolist() == [10.0, 42.0]
    assert not model._forward_pre_hooks
    assert not model.first._forward_pre_hooks
    assert not model.first._forward_hooks
