"""Calls of autograd Functions are saved in the right forward or backward, run again and compared with a reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_nanguard.arbitration.bundle import read_bundle, write_bundle
from megatron_nanguard.arbitration.call_catcher import CallCatcher
from megatron_nanguard.arbitration.function_catcher import Moment
from megatron_nanguard.arbitration.repetition import arbitrate
from megatron_nanguard.records.suspect_call import Argument, SavedOutput, Value
from tests.unit.arbitration.calls import Catching, listening

NAN = float("nan")
Function = type[torch.autograd.Function]


@pytest.fixture
def attend() -> Iterator[Function]:
    """Stands for fused attention: its backward spoils the first row of dK where a query is above 2."""

    class FlashAttnFunc(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: Any) -> Tensor:
            ctx.save_for_backward(q, k, v)
            return (q * k).softmax(-1) * v

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            q, k, v = ctx.saved_tensors
            dk = torch.ones_like(k)
            if bool((q > 2).any()):
                dk[:, 0] = NAN
            return torch.ones_like(q), dk, torch.ones_like(v), None, None

    yield FlashAttnFunc


def run(attend: Function, *queries: float) -> None:
    for value in queries:
        q = torch.full((1, 4, 2, 3), value, requires_grad=True)
        k, v = (torch.ones(1, 4, 2, 3, requires_grad=True) for _ in range(2))
        attend.apply(q, k, v, 0.0, None).sum().backward()


def test_the_bad_backward_is_caught_with_the_inputs_of_its_forward(attend: Function) -> None:
    with listening("FlashAttnFuncBackward", rank=5) as catcher:
        run(attend, 1.0, 3.0, 1.0)

    saved = catcher.call.saved
    assert (saved.rank, saved.kind, saved.operator, saved.why_not) == (5, "backward", "FlashAttnFunc", "")
    assert [argument.name for argument in saved.args] == ["q", "k", "v", "dropout_p", "softmax_scale"]
    assert saved.grad_outputs == (Argument("grad_output.0", (Value("tensor", "grad_output.0"),)),)
    assert float(catcher.call.tensors["q"].max()) == 3.0
    assert saved.outputs == (
        SavedOutput("grad of q", (1, 4, 2, 3), "float32", 0, 0, 0, None),
        SavedOutput("grad of k", (1, 4, 2, 3), "float32", 6, 0, 0, (0, 0, 0, 0)),
        SavedOutput("grad of v", (1, 4, 2, 3), "float32", 0, 0, 0, None),
    )


def test_wrong_on_the_device_and_finite_by_the_reference_is_the_operator(attend: Function) -> None:
    with listening("FlashAttnFuncBackward") as catcher:
        run(attend, 3.0)

    found = arbitrate(catcher.call, 2)

    assert (found.operator, found.reference) == ("FlashAttnFuncBackward", "FlashAttnFunc")
    assert (found.repeats, found.repeats_bad) == (2, 2)
    assert (found.reference_fp32, found.reference_fp64) == ("finite", "finite")


def test_where_no_call_is_bad_the_last_one_is_kept(attend: Function) -> None:
    with listening("FlashAttnFuncBackward") as catcher:
        run(attend, 1.0, 2.0)

    assert all(output.is_finite for output in catcher.call.saved.outputs)
    assert float(catcher.call.tensors["q"].max()) == 2.0


def test_a_call_that_made_the_nan_is_preferred_to_one_that_passed_it_on(attend: Function) -> None:
    with listening("FlashAttnFuncBackward") as catcher:
        run(attend, float("inf"), 3.0, 4.0)

    assert float(catcher.call.tensors["q"].max()) == 3.0


def test_the_values_of_star_args_are_numbered() -> None:
    class Gathers(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, scale: float, *tensors: Tensor) -> Tensor:
            return tensors[0] * tensors[1] * scale

    with listening("Gathers.forward") as catcher:
        Gathers.apply(NAN, torch.ones(1), torch.ones(1))

    assert [argument.name for argument in catcher.call.saved.args] == ["scale", "tensors.0", "tensors.1"]
    assert arbitrate(catcher.call, 1).repeats_bad == 1


def test_only_calls_in_the_wanted_module_are_saved(attend: Function) -> None:
    modules = iter(["a", "a", "b", "b", "b", "a"])
    with listening("FlashAttnFuncBackward", "b", cap_bytes=1 << 20) as catcher:
        catcher.now = lambda: Moment(0, next(modules))
        run(attend, 3.0, 4.0)

    assert float(catcher.call.tensors["q"].max()) == 4.0


def test_a_forward_is_caught_with_inputs_as_they_were_before_it(attend: Function) -> None:
    class Spoils(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x.fill_(NAN)
            return x.clone()

    with listening("Spoils.forward") as catcher:
        Spoils.apply(torch.ones(2))

    assert catcher.call.saved.kind == "forward"
    assert catcher.call.tensors["x"].tolist() == [1.0, 1.0]
    assert catcher.call.saved.outputs[0].nan == 2


def test_a_function_with_a_context_of_its_own_is_caught_too() -> None:
    class Separate(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor, scale: float) -> Tensor:
            return x * scale

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.scale = inputs[1]

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad * NAN, None

    x = torch.ones(2, requires_grad=True)
    with listening("SeparateBackward") as catcher:
        Separate.apply(x, 3.0).sum().backward()

    assert [argument.name for argument in catcher.call.saved.args] == ["x", "scale"]
    assert catcher.call.saved.outputs[0].nan == 2
    assert arbitrate(catcher.call, 1).repeats_bad == 1


def test_the_class_is_left_as_it_is(attend: Function) -> None:
    before = dict(attend.__dict__)

    with listening("FlashAttnFuncBackward"):
        assert dict(attend.__dict__) == before


def test_gradients_are_the_same_while_calls_are_caught(attend: Function) -> None:
    q = torch.full((1, 4, 2, 3), 1.5, requires_grad=True)
    with listening("FlashAttnFuncBackward"):
        attend.apply(q, q, q, 0.0, None).sum().backward()

    assert q.grad is not None and torch.equal(q.grad, torch.full_like(q, 3.0))


def test_a_tracer_sees_the_same_operators_with_and_without_the_catcher(attend: Function) -> None:
    alone, watched = Catching(CallCatcher(frozenset())), Catching(CallCatcher(frozenset()))
    with alone:
        run(attend, 3.0)
    with listening("FlashAttnFuncBackward") as catcher, watched:
        run(attend, 3.0)

    assert catcher.call.saved.outputs[1].nan == 6
    assert watched.names == alone.names


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NobodyBackward", "it was not called again"),
        ("FlashAttnFuncBackward", "it was not called again"),
    ],
)
def test_a_function_that_is_not_called_again_gives_a_reason(attend: Function, name: str, reason: str) -> None:
    with listening(name) as catcher:
        pass

    assert catcher.call.saved.why_not == reason


def test_inputs_above_the_cap_are_not_kept(attend: Function) -> None:
    with listening("FlashAttnFuncBackward", cap_bytes=100) as catcher:
        run(attend, 3.0)

    assert catcher.call.saved.why_not == "the call has 288 bytes of inputs, the limit is 100"
    assert catcher.call.tensors == {}
    assert not arbitrate(catcher.call).captured


class Quantizer:
    """Stands for one of Transformer Engine's: its state is in tensors, and a call changes it."""

    def __init__(self) -> None:
        self.amax = torch.ones(2)

    def __call__(self, x: Tensor) -> Tensor:
        self.amax += 1
        return x / (self.amax[0] - 2)


def test_an_argument_that_no_file_holds_is_copied_for_every_run_and_left_out_of_the_file(tmp_path: Path) -> None:
    class Quantizes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, others: Any) -> Tensor:
            return others[0](x)

    quantizer = Quantizer()
    with listening("Quantizes.forward") as catcher:
        Quantizes.apply(torch.ones(2), (quantizer, 3, None))

    found = arbitrate(catcher.call, 2)
    assert quantizer.amax.tolist() == [2.0, 2.0], "the state of the run is as the run left it"
    assert (found.repeats, found.repeats_bad) == (2, 2)
    assert found.note == "argument others.0 is a Quantizer, which has no form in a file; it is left out"
    assert found.reference_fp64 == "no reference for Quantizes"
    write_bundle(tmp_path, catcher.call)
    elsewhere = arbitrate(read_bundle(tmp_path), 2)
    assert elsewhere.repeats == 0
    assert elsewhere.note.endswith("; argument others.0 was a Quantizer, which no file holds")


def test_a_function_that_communicates_is_not_repeated_alone(world_of_one: None) -> None:
    class Reduces(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            torch.distributed.all_reduce(x)
            return x * NAN

    with listening("Reduces.forward") as catcher:
        Reduces.apply(torch.ones(2))

    found = arbitrate(catcher.call, 2)
    assert (found.repeats, found.note) == (0, "a communication needs its group")


class AddsWgrad(torch.autograd.Function):
    """Adds the gradient of the weight straight into `main_grad`, as fused accumulation does, and returns a dummy."""

    spoils = True

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        w.main_grad += grad.T @ x
        if AddsWgrad.spoils:
            w.main_grad[0, 1] = NAN
        w.grad_added_to_main_grad = True
        return grad @ w, torch.full_like(w, NAN)


def weight() -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.ones(2, 3))
    made.main_grad = torch.full((2, 3), 5.0)  # type: ignore[attr-defined]
    made.grad_added_to_main_grad = False  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(("spoils", "bad"), [(True, 2), (False, 0)])
def test_a_gradient_that_the_backward_adds_itself_counts_in_place_of_the_dummy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoils: bool, bad: int
) -> None:
    monkeypatch.setattr(AddsWgrad, "spoils", spoils)
    w = weight()
    with listening("AddsWgradBackward") as catcher:
        AddsWgrad.apply(torch.ones(4, 3, requires_grad=True), w).sum().backward()
    before = w.main_grad.clone()  # type: ignore[attr-defined]

    assert [output.name for output in catcher.call.saved.outputs] == ["grad of x", "wgrad of w"]
    assert arbitrate(catcher.call, 2).repeats_bad == bad
    write_bundle(tmp_path, catcher.call)
    assert arbitrate(read_bundle(tmp_path), 2).repeats_bad == bad
    assert torch.equal(w.main_grad.nan_to_num(), before.nan_to_num()), "runs add to a copy"  # type: ignore[attr-defined]


def test_the_call_in_which_the_event_happened_is_saved(attend: Function) -> None:
    events = iter([0, 10, 10, 20, 20, 30])
    with listening("FlashAttnFunc.forward", event=15) as catcher:
        catcher.now = lambda: Moment(next(events))
        run(attend, float("nan"), 2.0, float("nan"))

    assert float(catcher.call.tensors["q"].max()) == 2.0


def test_a_forward_that_is_called_without_a_context_is_caught(attend: Function) -> None:
    class NoGrad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * (NAN if ctx is None else 1.0)

    with listening("NoGrad.forward") as catcher:
        NoGrad.forward(None, torch.ones(2))

    assert [argument.name for argument in catcher.call.saved.args] == ["x"]
    assert catcher.call.saved.outputs[0].nan == 2
    assert arbitrate(catcher.call, 2).repeats_bad == 2, "it is made again without a context too"


@pytest.mark.parametrize(("factor", "bad"), [(NAN, 2), (2.0, 0)])
def test_an_argument_that_is_overwritten_is_an_output(factor: float, bad: int) -> None:
    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, table: Tensor) -> Tensor:
            table.mul_(factor)
            return x + 1

    with listening("InPlace.forward") as catcher:
        InPlace.apply(torch.ones(2), torch.ones(3))

    assert [output.name for output in catcher.call.saved.outputs] == (["0", "table"] if bad else ["0"])
    assert catcher.call.tensors["table"].tolist() == [1.0, 1.0, 1.0]
    assert arbitrate(catcher.call, 2).repeats_bad == bad


def test_an_argument_that_raises_costs_the_call_and_nothing_else(attend: Function) -> None:
    class Hostile:
        def __len__(self) -> int:
            raise RuntimeError("none of your business")

        def __copy__(self) -> Any:
            raise RuntimeError("none of your business")

    class Takes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, other: Any) -> Tensor:
            return x * NAN

    with listening("Takes.forward") as catcher:
        Takes.apply(torch.ones(2), Hostile())

    assert arbitrate(catcher.call, 2).repeats_bad == 2
