"""`trace_nan(fn)` on plain PyTorch: it prints origin, path and bad results, and finds nothing if nothing is bad."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import _global_forward_pre_hooks

import megatron_nanguard
from megatron_nanguard.records.trace import OriginKind, TensorFacts
from megatron_nanguard.tracing.callable import trace_nan
from megatron_nanguard.tracing.places.source_lines import SourceLine


class Slope(torch.autograd.Function):
    """The identity; its backward is 0 / 0 where x is above 10."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (x,) = ctx.saved_tensors
        below = (x <= 10).to(x.dtype)
        return grad_outputs[0] * (below / below)


class Activation(Module):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Slope.apply(x)
        return y


class Logarithm(Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


class Net(Module):
    """Two stages, and a mask of -inf that is meant."""

    def __init__(self, middle: Module) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2, bias=False)
        self.middle = middle
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(2))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.cat([self.middle(self.first(x)), torch.full((1, 1), -math.inf)], 1)
        return scores.softmax(1)[:, 0].sum()


def row(*values: float) -> Tensor:
    return torch.tensor([values])


def test_a_nan_of_the_backward_is_followed_to_its_operator() -> None:
    model = Net(Activation())
    found = trace_nan(lambda: model(row(1.0, 12.0)).backward())
    (origin,) = found.origins
    assert (origin.kind, origin.operator) == (OriginKind.OPERATOR, "div.Tensor")
    assert (origin.place.phase, origin.place.module) == ("backward", "middle")
    assert origin.place.forward_operator == "Slope"
    assert origin.path[0] == "div.Tensor in middle"
    assert origin.path[-1] == "mm in first"
    assert [(sink.names, sink.pattern) for sink in found.record.sinks] == [(("first.weight",), "nan")]


def test_the_twin_below_the_threshold_is_silent() -> None:
    model = Net(Activation())
    found = trace_nan(lambda: model(row(1.0, 9.0)).backward())
    assert found.origins == ()
    assert str(found) == "nothing bad in the result or in a gradient"


def test_origin_path_and_end_are_printed() -> None:
    line = Logarithm.forward.__code__.co_firstlineno + 1
    function = getattr(Logarithm.forward.__code__, "co_qualname", "forward")
    here = str(SourceLine(Logarithm.forward.__code__, line)).partition(":")[0]
    assert str(trace_nan(Net(Logarithm()), row(-1.0, 1.0))).splitlines() == [
        f"origin  log in middle, forward, output 0: nan, at {here}:{line} in {function}",
        "        output 0, (1, 2) float32: 1 NaN, 0 Inf, largest finite 0, first at (0, 0)",
        "        read self: finite, largest 1",
        "path    log in middle > cat in Net > _softmax in Net > sum in Net",
        "bad     result: nan",
    ]


def test_the_origin_has_counts_and_positions() -> None:
    (origin,) = trace_nan(Net(Logarithm()), row(-3.0, 1.0)).origins
    assert origin.outputs == (TensorFacts("0", (1, 2), "float32", "nan", 1, 0, 0.0, ((0, 0),), "", 0.0, 0.0),)
    assert [(facts.name, facts.pattern, facts.nan_count, facts.absmax) for facts in origin.inputs] == [
        ("self", "finite", 0, 3.0)
    ]


def test_an_overwritten_input_is_printed_with_its_pattern_alone() -> None:
    (origin,) = trace_nan(lambda x: x.clone().log_().sum(), row(-3.0, 0.5)).origins
    assert (origin.kind, origin.operator, origin.outputs[0].nan_count) == (OriginKind.OPERATOR, "log_", 1)
    assert [(facts.pattern, facts.nan_count) for facts in origin.inputs] == [("finite", None)]


def test_a_row_that_is_masked_altogether_is_counted_at_the_softmax() -> None:
    scores = torch.zeros(3, 2)

    def attend(mask: Tensor) -> Tensor:
        return (scores * 1.0).masked_fill(mask, -math.inf).softmax(1)

    (origin,) = trace_nan(attend, torch.tensor([[False, True], [True, True], [False, False]])).origins
    (output,) = origin.outputs
    assert (origin.operator, output.nan_count, output.layout) == ("_softmax", 2, "row 1")
    assert [(facts.pattern, facts.inf_count) for facts in origin.inputs] == [("inf", 3)]


def test_a_weight_that_was_bad_before_is_counted_too() -> None:
    model = torch.nn.Linear(4, 2)
    with torch.no_grad():
        model.weight[1, 2] = math.inf
    (origin,) = trace_nan(model, torch.ones(1, 4)).origins
    assert origin.operator == "parameter weight"
    # The operator reads the weight transposed.
    assert [(facts.inf_count, facts.positions) for facts in origin.outputs] == [(1, ((2, 1),))]


def test_the_backward_of_a_function_names_the_line_of_its_forward() -> None:
    model = Net(Activation())
    line = Activation.forward.__code__.co_firstlineno + 1
    text = str(trace_nan(lambda: model(row(1.0, 12.0)).backward()))
    assert "\n        backward of Slope at " in text
    assert f"test_callable.py:{line} in Activation" in text


def test_a_function_without_modules_and_its_leaves_are_traced() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    found = trace_nan(lambda: (x.sqrt() * 0.0).sum().backward())
    assert [(sink.names, sink.pattern) for sink in found.record.sinks] == [(("leaf 1 [2]",), "nan")]
    (origin,) = found.origins
    assert origin.operator == "div.Tensor"  # 0 / (2 * sqrt(0))
    assert origin.place.module == ""


def test_a_nan_without_effect_on_the_result_is_only_counted() -> None:
    x = torch.tensor([-1.0, 4.0], requires_grad=True)

    def loss() -> None:
        x.detach().log().nan_to_num(0.0).mul(x).sum().backward()

    assert str(trace_nan(loss)) == (
        "nothing bad in the result or in a gradient\n"
        "bad on the way, without effect on either: 1; return the loss to follow it too"
    )


def test_a_method_of_a_module_knows_its_names() -> None:
    class Trained(Net):
        def training_step(self, x: Tensor) -> Tensor:
            loss: Tensor = self(x)
            loss.backward()
            return loss.detach()

    found = trace_nan(Trained(Logarithm()).training_step, row(-1.0, 1.0))
    assert [sink.names for sink in found.record.sinks] == [("result", "first.weight")]
    assert [origin.place.module for origin in found.origins] == ["middle"]
    assert math.isnan(found.result)


def test_several_results_are_numbered() -> None:
    found = trace_nan(lambda x: {"good": x, "bad": x.log()}, torch.tensor([-1.0]))
    assert [sink.names for sink in found.record.sinks if sink.pattern != "finite"] == [("result 1",)]


def test_a_second_model_in_the_same_call_has_its_class_in_front() -> None:
    first, second = Net(Activation()), Net(Logarithm())
    found = trace_nan(lambda: first(row(1.0, 1.0)) + second(row(-1.0, 1.0)))
    assert [origin.place.module for origin in found.origins] == ["Net.middle"]


def test_bits_are_those_of_an_untraced_call() -> None:
    def step(model: Module) -> list[Tensor]:
        torch.manual_seed(3)
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        return [loss, *(p.grad for p in model.parameters() if p.grad is not None), torch.get_rng_state()]

    def fresh() -> Module:
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8))

    expected, traced = step(fresh()), trace_nan(step, fresh()).result
    assert all(torch.equal(a, b) for a, b in zip(traced, expected, strict=True))


def test_an_exception_of_the_callable_passes_and_leaves_no_hook() -> None:
    before = len(_global_forward_pre_hooks)

    def fails() -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        trace_nan(fails)
    assert len(_global_forward_pre_hooks) == before


def test_it_can_be_reached_from_the_package() -> None:
    assert megatron_nanguard.trace_nan is trace_nan
