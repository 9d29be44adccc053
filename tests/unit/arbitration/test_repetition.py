"""The call again, here and in higher precision: what each kind of fault looks like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from megatron_nanguard.arbitration.call_catcher import unsaved_call
from megatron_nanguard.arbitration.repetition import Alone, Repeats, arbitrate, refer, repeat
from megatron_nanguard.arbitration.repro import CannotRun
from megatron_nanguard.records.suspect_call import Arbitration, PeerAnswer
from megatron_nanguard.tracing.marker_fill import MarkerFill
from tests.unit.arbitration.calls import bad_first_element, catch, listening

NEGATIVE = torch.tensor([[1.0, -1.0]])


def test_numerics_are_bad_everywhere() -> None:
    call = catch(NEGATIVE.log, "aten.log.default")

    assert arbitrate(call, 3) == Arbitration(
        rank=5,
        operator="aten.log.default",
        event=0,
        repeats=3,
        repeats_bad=3,
        reference_fp32="bad",
        reference_fp64="bad",
        reference="aten",
    )


def test_a_transient_fault_is_gone_when_the_call_is_made_again() -> None:
    call = catch(NEGATIVE.exp, "aten.exp.default", spoil=bad_first_element)

    found = arbitrate(call, 3)

    assert call.saved.outputs[0].nan == 1
    assert (found.repeats, found.repeats_bad) == (3, 0)
    assert (found.reference_fp32, found.reference_fp64) == ("finite", "finite")


def test_inputs_that_were_bad_already_are_said_to_be() -> None:
    call = catch(lambda: torch.tensor([float("nan")]) * 2, "aten.mul.Tensor")

    assert arbitrate(call).inputs_bad


def test_an_overflow_of_the_output_type_is_bad_in_the_reference_too_and_named() -> None:
    call = catch(lambda: torch.tensor([1e5]).half(), "aten._to_copy.default")

    found = arbitrate(call)

    assert (found.reference_fp64, found.out_of_range) == ("bad", True)


def test_softmax_of_half_precision_has_a_reference() -> None:
    masked = torch.full((1, 4), float("-inf"), dtype=torch.float16)

    call = catch(lambda: torch.ops.aten._softmax.default(masked, -1, False), "aten._softmax.default")

    assert refer(call, torch.float64) == ("bad", False)


def test_an_infinity_does_not_stand_for_a_nan_that_is_gone() -> None:
    """-inf of log(0) is right and stays; the NaN beside it was the kernel's."""
    call = catch(torch.tensor([1.0, 0.0]).log, "aten.log.default", spoil=bad_first_element)

    assert call.saved.outputs[0].negative_inf == 1
    assert repeat(call, 2) == Repeats(2)
    assert refer(call, torch.float64) == ("finite", False)


def test_a_draw_is_repeated_with_the_same_numbers_and_the_generator_is_left_as_it_was() -> None:
    x = torch.full((64,), 4.0)

    def step() -> Any:
        torch.manual_seed(11)
        return (x * 0).bernoulli_(0.5).sub_(1).log()

    drawn = catch(step, "aten.bernoulli_.float")
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)

    assert repeat(drawn, 4) == Repeats(4)
    assert torch.equal(torch.rand(3), expected)


def test_the_answer_of_a_peer_is_added() -> None:
    call = catch(NEGATIVE.log, "aten.log.default")

    with_peer = arbitrate(call, 1, PeerAnswer(rank=6, device="cuda:0 A", outcome="finite"))
    without = arbitrate(call, 1, "no peer: nobody answered within 5 s")

    assert (with_peer.peer, with_peer.peer_rank, with_peer.peer_device) == ("finite", 6, "cuda:0 A")
    assert (without.peer, without.peer_rank, without.peer_device) == ("no peer: nobody answered within 5 s", None, "")


def test_a_call_that_could_not_be_saved_is_not_run_and_says_why() -> None:
    found = arbitrate(unsaved_call(5, 12, "c10d.allreduce_.default", "a communication needs its group"))

    assert found == Arbitration(
        rank=5,
        operator="c10d.allreduce_.default",
        event=12,
        captured=False,
        note="a communication needs its group",
    )


def test_float32_is_no_reference_for_what_ran_in_float64() -> None:
    call = catch(NEGATIVE.double().log, "aten.log.default")

    found = arbitrate(call)

    assert (found.reference_fp32, found.reference_fp64) == ("not_tried", "bad")


def test_a_kernel_that_overflows_inside_differs_from_a_result_out_of_range() -> None:
    """The sum of 1024 times 300 is beyond float16, their mean is not."""
    x = torch.full((1024,), 300.0, dtype=torch.float16)

    call = catch(x.mean, "aten.mean.default", spoil=lambda out: out * float("inf"))

    assert call.saved.outputs[0].positive_inf == 1
    assert refer(call, torch.float64) == ("finite", False)


def test_a_collective_is_refused_before_it_begins(world_of_one: None) -> None:
    x = torch.ones(2)

    with Alone(), pytest.raises(CannotRun, match=r"^a communication needs its group$"):
        dist.all_reduce(x)

    with Alone():
        assert torch.equal(x * 2, torch.full((2,), 2.0))


@pytest.mark.parametrize(("is_fault", "expected"), [(True, Repeats(4, 2, 2, 0)), (False, Repeats(4, 0, 2, 0))])
def test_a_function_that_reads_memory_before_it_writes_it_is_finite_in_zeros(is_fault: bool, expected: Repeats) -> None:
    """The allocator hands out NaN that a call before has left; here fresh memory is filled with it."""

    class Accumulates(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            workspace = torch.empty(2)
            return x + workspace if is_fault else workspace.copy_(x) * 2

    with MarkerFill():
        with listening("Accumulates.forward") as catcher:
            Accumulates.apply(torch.ones(2))
        assert repeat(catcher.call, 4) == expected


def test_a_function_that_is_wrong_is_bad_in_zeros_too() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(x).copy_(x) / 0 - x / 0

    with listening("Wrong.forward") as catcher:
        Wrong.apply(torch.ones(2))

    found = arbitrate(catcher.call, 4)
    assert (found.repeats, found.repeats_bad, found.zero_filled, found.zero_filled_bad) == (4, 4, 2, 2)


class _Linear(torch.autograd.Function):
    """In the shape of Transformer Engine's, with a weight gradient that goes straight into `main_grad`."""

    spoils = True

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, inp: torch.Tensor, bias: Any) -> torch.Tensor:
        ctx.save_for_backward(weight, inp)
        return inp @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        weight, inp = ctx.saved_tensors
        weight.main_grad += grad.T @ inp
        if _Linear.spoils:
            weight.main_grad[0, 1] = float("nan")
        weight.grad_added_to_main_grad = True
        return torch.empty_like(weight), grad @ weight, None


@pytest.mark.parametrize(("spoils", "largest", "outcome"), [(True, 1.0, "finite"), (False, 1e30, "bad")])
def test_a_weight_gradient_in_main_grad_is_compared_with_that_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, spoils: bool, largest: float, outcome: str
) -> None:
    """The twin gets values whose products leave the range of the gradient, also by the reference."""
    monkeypatch.setattr(_Linear, "spoils", spoils)
    weight = torch.nn.Parameter(torch.ones(2, 3))
    weight.main_grad = torch.zeros(2, 3)  # type: ignore[attr-defined]
    weight.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    inp = torch.full((4, 3), largest, requires_grad=True)

    with listening("_LinearBackward") as catcher:
        (_Linear.apply(weight, inp, None) * largest).sum().backward()

    bad = [output.name for output in catcher.call.saved.outputs if not output.is_finite]
    found = arbitrate(catcher.call, 2)
    assert bad == ["wgrad of weight"]
    assert (found.operator, found.repeats_bad, found.reference_fp64) == ("_LinearBackward", 2, outcome)
    assert found.out_of_range is not spoils
