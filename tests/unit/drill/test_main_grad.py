"""Phases wgrad and reduced: one parameter's gradient before and after the reduction."""

from __future__ import annotations

import math

import torch

from tests.unit.drill.models import X0, X1, Chain, fired, grads, plant, train


def test_the_gradient_is_poisoned_before_the_reduction_only() -> None:
    model = Chain()
    drills = plant("inf@step=1,rank=0,phase=wgrad,param=second.weight,index=1", model)
    drills.step_begins(1)
    model(torch.tensor(X0)).sum().backward()
    assert grads(model)["second.weight"] == [2.0, 6.0]
    drills.before_reduction([model.first.weight])
    assert grads(model)["second.weight"] == [2.0, 6.0]
    drills.before_reduction([model.second.weight])
    assert grads(model) == {"first.weight": [5.0, 14.0], "second.weight": [2.0, math.inf]}
    assert list(fired(drills).values()) == [1]


def test_main_grad_goes_before_grad() -> None:
    model = Chain()
    model.second.weight.main_grad = torch.tensor([8.0, 9.0])  # type: ignore[assignment]
    drills = plant("inf@step=1,rank=0,phase=wgrad,param=second.weight", model)
    train(drills, model, step=1)
    assert model.second.weight.main_grad.tolist() == [math.inf, 9.0]
    assert grads(model)["second.weight"] == [2.0, 6.0]


def test_stale_repeats_the_gradient_of_the_step_before() -> None:
    model = Chain()
    drills = plant("stale@step=2,rank=0,phase=wgrad,param=second.weight", model)
    train(drills, model, step=1, inputs=(X1,))
    train(drills, model, step=2, inputs=(X0,))
    assert grads(model) == {"first.weight": [5.0, 14.0], "second.weight": [6.0, 12.0]}
    train(drills, model, step=3, inputs=(X0,))
    assert grads(model)["second.weight"] == [2.0, 6.0]


def test_a_parameter_without_a_gradient_says_so() -> None:
    model = Chain()
    drills = plant("nan@step=1,rank=0,phase=wgrad,param=second.weight", model)
    drills.step_begins(1)
    drills.before_reduction([model.second.weight])
    (outcome,) = drills.record().drills
    assert outcome.why_not == "the parameter had no gradient"


def test_the_gradient_is_poisoned_after_the_reduction_only() -> None:
    model = Chain()
    drills = plant("nan@step=1,rank=0,phase=reduced,param=first.weight,index=1", model)
    drills.step_begins(1)
    model(torch.tensor(X0)).sum().backward()
    drills.before_reduction(list(model.parameters()))
    assert grads(model)["first.weight"] == [5.0, 14.0]
    drills.after_reduction()
    first, second = grads(model).values()
    assert first[0] == 5.0
    assert math.isnan(first[1])
    assert second == [2.0, 6.0]


def test_stale_repeats_the_reduced_gradient_of_the_step_before() -> None:
    model = Chain()
    drills = plant("stale@step=2,rank=0,phase=reduced,param=first.weight", model)
    train(drills, model, step=1, inputs=(X1,))
    train(drills, model, step=2, inputs=(X0,))
    assert grads(model) == {"first.weight": [15.0, 28.0], "second.weight": [2.0, 6.0]}


def test_once_leaves_a_replay_clean() -> None:
    model = Chain()
    drills = plant("nan@step=1,rank=0,phase=reduced,param=first.weight,once", model)
    train(drills, model, step=1)
    train(drills, model, step=1)
    assert grads(model)["first.weight"] == [5.0, 14.0]
    assert list(fired(drills).values()) == [1]
