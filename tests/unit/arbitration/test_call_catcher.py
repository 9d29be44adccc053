"""Which call is saved, in what form, and why one is not."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_nanguard.arbitration.call_catcher import CallCatcher
from megatron_nanguard.records.suspect_call import Argument, RowCut, SavedOutput, SavedTensor, Value
from tests.unit.arbitration.calls import Catching, catch

MANY = torch.ones(64, 2).index_put((torch.tensor([9]), torch.tensor([1])), torch.tensor(-1.0))


def test_the_inputs_and_what_came_out_are_saved() -> None:
    x = torch.tensor([[1.0, -1.0], [0.0, 1.0]])

    call = catch(x.log, "aten.log.default")

    assert (call.saved.rank, call.saved.event, call.saved.operator, call.saved.kind) == (
        5,
        0,
        "aten.log.default",
        "operator",
    )
    assert call.saved.args == (Argument("self", (Value("tensor", "self"),)),)
    assert call.saved.tensors == {"self": SavedTensor((2, 2), (2, 1), "float32", "cpu", True)}
    assert call.saved.outputs == (SavedOutput("0", (2, 2), "float32", 1, 0, 1, (0, 1)),)
    assert call.saved.rows is None and not call.full
    assert torch.equal(call.tensors["self"], x)


def test_what_the_operator_overwrites_is_saved_as_it_was_before() -> None:
    def step() -> None:
        x = torch.full((2,), -1.0)
        x.log_()

    call = catch(step, "aten.log_.default")

    assert call.tensors["self"].tolist() == [-1.0, -1.0]
    assert call.saved.outputs[0].nan == 2


def test_a_foreach_operator_that_returns_nothing_has_its_first_list_as_result() -> None:
    def step() -> None:
        torch._foreach_mul_([torch.ones(1), torch.full((1,), math.inf)], 0.0)

    call = catch(step, "aten._foreach_mul_.Scalar")

    assert call.saved.args[0] == Argument("self", (Value("tensor", "self.0"), Value("tensor", "self.1")), True)
    assert [output.nan for output in call.saved.outputs] == [0, 1]


def test_values_keep_their_types_and_keywords_their_names() -> None:
    x = torch.ones(2, dtype=torch.float16)

    call = catch(lambda: x.to(torch.float32), "aten._to_copy.default")
    clamp = catch(lambda: x.clamp(max=math.inf), "aten.clamp.default")

    assert call.saved.kwargs == (Argument("dtype", (Value("dtype", "float32"),)),)
    assert clamp.saved.args[1:] == (Argument("min", (Value("none"),)), Argument("max", (Value("float", "inf"),)))


def test_only_bad_rows_and_a_few_good_ones_are_kept_and_the_whole_beside() -> None:
    call = catch(MANY.log, "aten.log.default")

    assert call.saved.rows == RowCut((0, 1, 2, 3, 9), 64)
    assert call.tensors["self"].tolist() == [[1, 1]] * 4 + [[1, -1]]
    assert call.saved.outputs == (SavedOutput("0", (5, 2), "float32", 1, 0, 0, (4, 1)),)
    assert call.saved.full_outputs == (SavedOutput("0", (64, 2), "float32", 1, 0, 0, (9, 1)),)
    assert torch.equal(call.full["self"], MANY)


def test_above_the_cap_only_the_rows_are_kept() -> None:
    call = catch(MANY.log, "aten.log.default", cap_bytes=5 * 2 * 4)

    assert call.saved.rows == RowCut((0, 1, 2, 3, 9), 64)
    assert call.full == {} and call.saved.full_tensors == {} and call.saved.full_outputs == ()


def test_a_call_too_large_and_not_by_rows_says_so_and_keeps_its_counts() -> None:
    call = catch(lambda: MANY.log().sum(), "aten.sum.default", cap_bytes=100)

    assert call.saved.why_not == "the call has 512 bytes of inputs, the limit is 100"
    assert call.saved.outputs[0].nan == 1
    assert call.tensors == {}


def test_the_state_of_the_generator_goes_along_where_random_numbers_are_drawn() -> None:
    x = torch.ones(4)
    torch.manual_seed(3)

    call = catch(lambda: torch.bernoulli(x * 0.5), "aten.bernoulli.default")

    assert call.saved.rng == "rng" and call.saved.rng_device == "cpu"
    assert call.tensors["rng"].dtype == torch.uint8


def test_a_chosen_event_without_operator_takes_the_operator_that_follows() -> None:
    catcher = CallCatcher(frozenset({3, 4}))
    x = torch.tensor([math.nan])

    catcher.before(5, torch.ops.aten.mul.Tensor, (x, 2.0), {})
    catcher.after(x * 2.0)

    assert {event: call.saved.event for event, call in catcher.calls.items()} == {3: 3, 4: 4}
    assert catcher.calls[3].saved.operator == "aten.mul.Tensor"
    assert not catcher.calls[3].saved.tensors["self"].is_finite


def test_what_was_not_chosen_is_left_alone() -> None:
    catcher = CallCatcher(frozenset({1}))
    with Catching(catcher):
        torch.ones(2).log().exp()

    assert [call.saved.operator for call in catcher.calls.values()] == ["aten.log.default"]


def test_a_communication_is_never_made_alone() -> None:
    catcher = CallCatcher(frozenset({0}))

    catcher.before(0, torch.ops._c10d_functional.all_reduce.default, (torch.ones(1), "sum", "0"), {})
    catcher.after(torch.ones(1))

    assert catcher.calls[0].saved.why_not == "a communication needs its group"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.ones(2, 2).to_sparse(), "argument self is not a plain dense tensor"),
        (torch.ones(2, dtype=torch.complex128), "argument self is torch.complex128, which safetensors does not hold"),
        (object(), "argument self is a object, which has no form in a file"),
    ],
)
def test_an_argument_that_no_file_can_hold_is_a_reason(value: object, reason: str) -> None:
    catcher = CallCatcher(frozenset({0}))

    catcher.before(0, torch.ops.aten.log.default, (value,), {})
    catcher.after(torch.ones(1))

    assert catcher.calls[0].saved.why_not == reason
