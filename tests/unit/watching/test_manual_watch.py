"""`watch(model)`: the module that makes the first bad value, in either direction, and silence otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Module

import megatron_nanguard
from megatron_nanguard.errors import SettingsError
from megatron_nanguard.watching import watch
from tests.unit.conftest import Log
from tests.unit.watching.models import GOOD, STEEP, Block, Gelu, Mlp, Scale, leaf


def test_a_gelu_with_a_finite_forward_and_a_nan_backward_is_found(log: Log) -> None:
    model = Block()
    with watch(model) as seen:
        model(leaf(STEEP)).sum().backward()
    assert seen.hit is not None
    assert (seen.hit.module, seen.hit.phase, seen.hit.call) == ("mlp.activation", "backward", 0)
    assert log.messages == [
        "watch: backward of mlp.activation: grad_input 0: 1 NaN of 2, first at [1]; grad_output was finite"
    ]


def test_the_same_model_below_the_threshold_is_silent(log: Log) -> None:
    model = Block()
    with watch(model) as seen:
        model(leaf(GOOD)).sum().backward()
    assert seen.hit is None
    assert log.messages == []


def test_the_bad_values_hold_the_inputs_of_the_backward() -> None:
    model = Block()
    with watch(model, "activation") as seen:
        model(leaf(STEEP)).sum().backward()
    assert seen.hit is not None
    tensors = seen.hit.tensors
    assert tensors["inputs"]["0"].tolist() == [2.0, 12.0]
    assert tensors["outputs"][""].tolist() == torch.nn.functional.gelu(torch.tensor([2.0, 12.0])).tolist()
    assert tensors["grad_output"][""].tolist() == [5.0, 7.0]
    first, second = tensors["grad_input"]["0"].tolist()
    assert first == 5.0
    assert math.isnan(second)
    assert seen.hit.changed == {}


def test_a_gradient_that_is_bad_on_arrival_is_said_to_be(log: Log) -> None:
    model = Mlp()
    with watch(model, "^up$"):
        model(leaf(STEEP)).sum().backward()
    assert log.messages == [
        "watch: backward of up: grad_input 0: 1 NaN of 2, first at [1]; "
        "grad_output: 1 NaN of 2, first at [1] on arrival"
    ]


def test_only_the_share_of_the_module_itself_counts() -> None:
    """Both branches read x; the gradient of x is NaN through one of them."""

    class Branches(Module):
        def __init__(self) -> None:
            super().__init__()
            self.good, self.bad = Scale(1.0, 1.0), Gelu()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.good(x) + self.bad(x)
            return y

    model, x = Branches(), torch.tensor([2.0, 12.0], requires_grad=True)
    with watch(model, "good") as good, watch(model, "bad") as bad:
        model(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isnan().tolist() == [False, True]
    assert good.hit is None
    assert bad.hit is not None


def test_an_input_that_is_read_twice_gets_the_sum_of_both_shares() -> None:
    class Twice(Module):
        def forward(self, x: Tensor, *, factor: Tensor) -> Tensor:
            return x * factor + x * 3

    x = torch.tensor([1.0], requires_grad=True)
    module = Twice()
    with watch(module, above=4.0) as seen:
        module(x, factor=torch.tensor([2.0])).sum().backward()
    assert seen.hit is not None
    assert seen.hit.phase == "forward"  # 1 * 2 + 1 * 3 = 5 is above 4 already
    with watch(module, above=4.5) as seen:
        (module(x * 0.5, factor=torch.tensor([2.0])).sum()).backward()
    assert seen.hit is not None
    assert seen.hit.tensors["grad_input"]["0"].tolist() == [5.0]
    assert seen.hit.tensors["inputs"]["factor"].tolist() == [2.0]


def test_a_bad_output_is_found_in_the_forward_with_its_state(log: Log) -> None:
    model = Mlp()
    with torch.no_grad():
        model.up.weight[0] = math.inf
    with watch(model) as seen:
        model(leaf(GOOD))
    assert seen.hit is not None
    assert log.messages == ["watch: forward of up: output: 1 Inf of 2, first at [0]; inputs were finite"]
    assert seen.hit.tensors["state"]["weight"].tolist() == [math.inf, 3.0]
    assert seen.hit.tensors["state"]["seen"].tolist() == [0.0]
    assert seen.hit.tensors["grad_input"] == {}


def test_values_above_the_limit_count_though_they_are_finite(log: Log) -> None:
    model = Mlp()
    with watch(model, above=12):
        model(leaf(GOOD)).sum().backward()
    # h = [2, 6], y = [5, 7] * gelu(h) = [9.8, 42]
    assert log.messages == ["watch: forward of down: output: up to 42, first at [1]; inputs were within the limit"]


def test_an_infinite_mask_among_the_inputs_is_not_bad() -> None:
    class Masked(Module):
        def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
            return (scores + mask).softmax(0)

    module = Masked()
    with watch(module) as seen:
        module(leaf(GOOD), torch.tensor([0.0, -math.inf]))[0].backward()
    assert seen.hit is None


@pytest.mark.parametrize("recompute", ["reentrant", "nonreentrant"])
def test_activation_checkpointing_is_looked_through(recompute: str) -> None:
    model = Block(recompute)
    with watch(model, "activation") as seen:
        model(leaf(STEEP)).sum().backward()
    assert seen.hit is not None
    assert (seen.hit.module, seen.hit.phase) == ("mlp.activation", "backward")
    assert seen.hit.tensors["inputs"]["0"].tolist() == [2.0, 12.0]


def test_a_bad_value_in_the_recompute_alone_is_called_so() -> None:
    class Second(Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * (math.nan if self.calls == 2 else 1.0)

    model = Block("reentrant")
    model.mlp.activation = Second()  # type: ignore[assignment]
    with watch(model, "activation") as seen:
        model(leaf(GOOD)).sum().backward()
    assert seen.hit is not None
    assert seen.hit.phase == "recompute"


def test_only_the_first_bad_values_are_logged(log: Log) -> None:
    model = Block()
    with watch(model):
        for _ in range(3):
            model(leaf(STEEP)).sum().backward()
    assert len(log.messages) == 1


def test_calls_are_counted() -> None:
    model = Block()
    with watch(model) as seen:
        model(leaf(GOOD)).sum().backward()
        model(leaf(STEEP)).sum().backward()
    assert seen.hit is not None
    assert seen.hit.call == 1
    assert str(seen.hit).startswith("backward of mlp.activation, call 1: ")


def test_inference_and_models_without_gradients_are_watched_forward() -> None:
    model = Mlp()
    with torch.inference_mode(), watch(model) as seen:
        model(torch.tensor([math.nan, 1.0]))
    assert seen.hit is not None
    assert str(seen.hit) == (
        "forward of up: output: 1 NaN of 2, first at [0]; input 0: 1 NaN of 2, first at [0] on arrival"
    )


def test_tensors_that_changed_since_the_forward_are_named() -> None:
    model = Mlp()
    with watch(model, "activation") as seen:
        out = model.activation(model.up(leaf(STEEP)))
        out.mul_(2.0)
        out.sum().backward()
    assert seen.hit is not None
    assert seen.hit.changed == {"output": "changed in place since"}


def test_an_output_whose_memory_was_given_back_is_left_out() -> None:
    model = Mlp()
    with watch(model, "down") as seen:
        out = model(leaf(GOOD))
        total = out.sum()
        out.untyped_storage().resize_(0)
        total.backward(torch.tensor(math.nan))
    assert seen.hit is not None
    assert seen.hit.changed == {"output": "its memory was given back"}
    assert seen.hit.tensors["outputs"] == {}


def test_the_file_is_read_with_weights_only(tmp_path: Path) -> None:
    model, file = Block(), tmp_path / "deep" / "hit.pt"
    with watch(model, file=file) as seen:
        model(leaf(STEEP)).sum().backward()
    content = torch.load(file, weights_only=True)
    assert {name: content[name] for name in ("schema_version", "module", "phase", "step", "call", "above")} == {
        "schema_version": 1,
        "module": "mlp.activation",
        "phase": "backward",
        "step": None,
        "call": 0,
        "above": None,
    }
    assert content["words"] == str(seen.hit)
    assert content["grad_output"][""].tolist() == [5.0, 7.0]
    assert content["state"] == {}
    assert [path.name for path in file.parent.iterdir()] == ["hit.pt"]


def test_a_view_is_saved_without_the_memory_behind_it(tmp_path: Path) -> None:
    module = torch.nn.Identity()
    with watch(module, file=tmp_path / "hit.pt"):
        module(torch.full((1000, 1000), math.nan)[:1, :2])
    assert (tmp_path / "hit.pt").stat().st_size < 10_000


def train(model: Module, steps: int = 3) -> list[Tensor]:
    """A few steps with dropout; every gradient, weight and random state of them."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
    return [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None), torch.get_rng_state()]


class Residual(Module):
    """x is read three times: the order of the additions shows in the last bit."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y: Tensor = x + self.drop(self.second(x)) + x.tanh()
        return y


def residuals() -> Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Residual() for _ in range(4)))


def test_a_watched_run_is_bit_identical() -> None:
    alone, watched = residuals(), residuals()
    expected = train(alone)
    with watch(watched) as seen:
        found = train(watched)
    assert seen.hit is None
    assert len(found) == len(expected) == 33
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_run_with_a_full_backward_hook_would_not_pass_for_identical_graphs() -> None:
    """What the watch avoids: such a hook puts nodes into the graph."""
    module = torch.nn.Linear(2, 2)
    x = torch.ones(1, 2, requires_grad=True)
    with watch(module):
        assert module(x).grad_fn.name() == "AddmmBackward0"
    module.register_full_backward_hook(lambda module, grad_input, grad_output: None)
    assert module(x).grad_fn.name() == "BackwardHookFunctionBackward"


def test_one_host_read_per_forward_and_backward(host_reads: Callable[[Callable[[], Any]], int]) -> None:
    model = Block()
    with watch(model, "activation|up"):
        assert host_reads(lambda: model(leaf(GOOD)).sum().backward()) == 4
    assert host_reads(lambda: model(leaf(GOOD)).sum().backward()) == 0


def test_no_hook_stays_after_the_end_or_after_a_hit() -> None:
    model = Block()
    with watch(model):
        assert len(model.mlp._forward_hooks) == 1
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with watch(model):
        model(leaf(STEEP)).sum().backward()
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_activations_are_let_go_after_the_backward_though_the_graph_lives() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    with watch(model):
        x = torch.ones(1, 4, requires_grad=True)
        hidden = model[0](x)
        memory = StorageWeakRef(hidden.untyped_storage())
        loss = model[1](hidden).sum()
        loss.backward()
        del hidden
        assert loss.grad_fn is not None
        assert memory.expired()


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(SettingsError) as caught:
        watch(Block(), "attention")
    assert str(caught.value) == (
        "no module has a name that matches 'attention'; there are mlp, mlp.up, mlp.activation, mlp.down and so on"
    )


def test_it_can_be_reached_from_the_package() -> None:
    assert megatron_nanguard.watch is watch
