"""Regions under activation checkpointing: the first forward, the forward that is run again, and the backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.unit.tracing.unseen_kernels import Layer, between, directly, layers, only_origin, places


class Checkpointed(nn.Module):
    """Runs layers under a checkpoint; `before_run` is told the number of each run of their forward."""

    def __init__(
        self, inner: nn.Sequential, is_reentrant: bool, before_run: Callable[[int], Any] = lambda number: None
    ) -> None:
        super().__init__()
        self.inner, self.is_reentrant, self.before_run, self.num_runs = inner, is_reentrant, before_run, 0

    def forward(self, x: Tensor) -> Tensor:
        def run(x: Tensor) -> Tensor:
            self.num_runs += 1
            self.before_run(self.num_runs)
            return self.inner(x)

        return checkpoint(run, x, use_reentrant=self.is_reentrant)


@pytest.mark.parametrize("is_reentrant", [True, False])
@pytest.mark.parametrize("fault", ["forward", "grad of x", "grad of weight"])
def test_the_faulty_layer_is_the_one_origin(fault: str, is_reentrant: bool) -> None:
    origin = only_origin(between(Checkpointed(layers("", fault, "", call=directly), is_reentrant)))
    name = "Linear.forward" if fault == "forward" else "LinearBackward"
    assert (origin.operator, origin.place.module) == (name, "1.inner.2")
    assert origin.place.phase == ("forward" if fault == "forward" else "backward")
    assert [facts.pattern for facts in origin.outputs] == ["nan"]


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_without_a_fault_nothing_is_found(is_reentrant: bool) -> None:
    model = Checkpointed(layers("", "", "", call=directly), is_reentrant)
    assert places(between(model)) == []
    assert model.num_runs == 2


@pytest.mark.parametrize("is_reentrant", [True, False])
@pytest.mark.parametrize("faulty_run", [1, 2])
def test_a_fault_in_one_of_the_two_forwards(faulty_run: int, is_reentrant: bool) -> None:
    inner = layers("", "", "", call=directly)
    faulty = inner[2]
    assert isinstance(faulty, Layer)

    def plant(number: int) -> None:
        faulty.fault = "forward" if number == faulty_run else ""

    origin = only_origin(between(Checkpointed(inner, is_reentrant, plant)))
    assert (origin.operator, origin.place.module) == ("Linear.forward", "1.inner.2")
    assert origin.place.phase == ("forward" if faulty_run == 1 else "recompute")
