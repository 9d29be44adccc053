"""The micro-batch that a module works on (recompute, virtual pipelining, modules that run twice), and its tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.checkpoint import checkpoint

from megatron_nanguard.drill.module_drill import replace_first
from tests.unit.drill.models import X0, X1, Chain, Scale, fired, grads, plant, train


def reentrant(run: Any, x: Tensor) -> Any:
    return checkpoint(run, x, use_reentrant=True)


def test_the_forward_of_a_checkpointed_module_fires_in_its_recompute_too() -> None:
    model = Chain(reentrant)
    drills = plant("1e30@step=1,rank=0,mb=1,phase=forward,module=first,index=0", model)
    train(drills, model, step=1, inputs=(X0, X1))
    assert list(fired(drills).values()) == [2]
    assert grads(model)["second.weight"][1] == 6.0 + 10 * 12.0


def test_chunks_count_apart_under_virtual_pipelining() -> None:
    chunks = (Chain(), Chain())
    drills = plant("nan@step=1,rank=0,mb=1,phase=backward,module=tail", *_with_tail(chunks))
    drills.step_begins(1)
    outputs = [chunk(torch.tensor(X0)) for chunk in (chunks[0], chunks[0], chunks[1], chunks[1])]
    for output in outputs[:3]:
        output.sum().backward()
    assert grads(chunks[1])["first.weight"] == [5.0, 14.0]
    outputs[3].sum().backward()
    assert math.isnan(grads(chunks[1])["first.weight"][0])


def _with_tail(chunks: tuple[Chain, Chain]) -> tuple[Chain, Chain]:
    """Give the module of the second chunk a name of its own, as a later layer has."""
    chunks[1].tail = chunks[1].second
    del chunks[1].second
    chunks[1]._call = lambda run, x: chunks[1].tail(chunks[1].first(x))
    return chunks


class TwicePerMicrobatch(Module):
    """Runs one module twice in a micro-batch, as multi-token prediction does with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = Scale(2.0, 3.0)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.shared(self.shared(x))
        return output


def test_a_module_that_runs_twice_in_a_micro_batch_stays_in_it() -> None:
    model = TwicePerMicrobatch()
    drills = plant("inf@step=1,rank=0,mb=1,phase=forward,module=shared,index=0", model)
    drills.step_begins(1)
    outputs = [model(torch.tensor(X0)).tolist() for _ in range(3)]
    assert outputs == [[4.0, 18.0], [math.inf, 18.0], [4.0, 18.0]]
    assert list(fired(drills).values()) == [2]


class RecomputedByHook(Module):
    """Recomputes a module in a tensor hook, as Megatron's checkpoint without output does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Scale(2.0, 3.0)
        self.recomputed: list[list[float]] = []

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.norm(x)
        h.requires_grad_()
        h.register_hook(lambda grad: self.recomputed.append(self.norm(x).tolist()))
        return h


def test_a_recompute_in_a_tensor_hook_belongs_to_its_forward() -> None:
    model = RecomputedByHook()
    drills = plant("inf@step=1,rank=0,mb=1,phase=forward,module=norm,index=0", model)
    drills.step_begins(1)
    outputs = [model(torch.tensor(X0)) for _ in range(3)]
    for output in outputs:
        output.sum().backward()
    assert model.recomputed == [[2.0, 6.0], [math.inf, 6.0], [2.0, 6.0]]


def test_a_micro_batch_that_is_not_recomputed_does_not_shift_the_others() -> None:
    """Partial activation checkpointing recomputes the first micro-batches of a window and keeps the others."""
    model = Chain(lambda run, x: run(x) if x[0] == X1[0] else reentrant(run, x))
    drills = plant("inf@step=1,rank=0,mb=2,phase=backward,module=second,index=0", model)
    drills.step_begins(1)
    outputs = [model(torch.tensor(x, requires_grad=True)) for x in (X1, X0, X0)]
    seen = []
    for output in outputs:
        model.zero_grad()
        output.sum().backward()
        seen.append(grads(model)["first.weight"])
    assert seen == [[15.0, 28.0], [5.0, 14.0], [math.inf, 14.0]]


def test_only_the_first_wanted_tensor_changes_and_the_structure_stays() -> None:
    numbers, first, second = torch.tensor([1]), torch.tensor([2.0]), torch.tensor([3.0])
    value = (numbers, {"a": [None, first], "b": second}, "text")
    changed, found = replace_first(value, torch.is_floating_point, lambda tensor: tensor * 10)
    assert found
    assert changed == (numbers, {"a": [None, torch.tensor([20.0])], "b": second}, "text")
    assert changed[1]["b"] is second
    assert first.item() == 2.0


def test_nothing_wanted_is_said() -> None:
    value = (torch.tensor([1]), None)
    changed, found = replace_first(value, torch.is_floating_point, lambda tensor: tensor * 10)
    assert not found
    assert changed == value
