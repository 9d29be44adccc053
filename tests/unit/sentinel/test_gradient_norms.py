"""Norms of the gradients in a real buffer, before and after the reduction, in fp32 by either way that torch offers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from megatron_nanguard.sentinel import gradient_norms
from megatron_nanguard.sentinel.gradient_norms import AfterReduction, BeforeReduction, norms_of
from tests.unit.one_rank import ONES, Trainer, trainer

# d loss / d first.weight = 5, 5, 6, 6 and d loss / d second.weight = 3, 7
FIRST, SECOND = math.sqrt(122.0), math.sqrt(58.0)


def looked(made: Trainer, *, per_parameter: bool) -> BeforeReduction:
    """The norms of the gradients that stand in the buffer."""
    before = BeforeReduction(per_parameter)
    for group in made.ddp.bucket_groups:
        before.look(group, False)
    return before


def by_name(made: Trainer, before: BeforeReduction) -> dict[str, float]:
    """Norms per parameter name."""
    names = {id(param): name for name, param in made.net.named_parameters()}
    return {
        names[id(param)]: norm
        for bucket in before.taken()
        for param, norm in zip(bucket.params, bucket.norms.tolist(), strict=True)
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_parameter_has_its_norm_in_fp32(megatron: Any, precision: str) -> None:
    made = trainer(bf16=precision == "bf16")
    made.forward_backward()
    before = looked(made, per_parameter=True)
    # Every number of this model is exact in bf16.
    assert by_name(made, before) == {
        "first.weight": pytest.approx(FIRST),
        "second.weight": pytest.approx(SECOND),
    }
    assert {bucket.norms.dtype for bucket in before.taken()} == {torch.float32}


def test_a_gradient_buffer_in_bf16_gives_fp32_norms(megatron: Any) -> None:
    made = trainer(bf16=True, ddp={"grad_reduce_in_fp32": False})
    made.forward_backward()
    made.net.first.weight.main_grad.fill_(2e38)
    before = looked(made, per_parameter=True)
    assert made.net.first.weight.main_grad.dtype == torch.bfloat16
    assert by_name(made, before) == {"first.weight": math.inf, "second.weight": pytest.approx(SECOND)}


def test_one_norm_per_bucket_is_of_everything_in_it(megatron: Any) -> None:
    made = trainer()
    made.forward_backward()
    (bucket,) = looked(made, per_parameter=False).taken()
    assert len(bucket.params) == 2
    assert bucket.norms.tolist() == [pytest.approx(math.sqrt(180.0))]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_element_shows_in_its_parameters_norm_alone(megatron: Any, bad: float) -> None:
    made = trainer()
    made.forward_backward()
    made.net.second.weight.main_grad[0, 1] = bad
    found = by_name(made, looked(made, per_parameter=True))
    assert found["first.weight"] == pytest.approx(FIRST)
    assert not math.isfinite(found["second.weight"])
    assert math.isnan(found["second.weight"]) is math.isnan(bad)


def test_an_empty_parameter_has_the_norm_0(megatron: Any) -> None:
    made = trainer()
    made.forward_backward()
    made.net.second.weight.main_grad = torch.empty(0)
    assert by_name(made, looked(made, per_parameter=True))["second.weight"] == 0.0


def test_a_bucket_is_measured_once_per_step(megatron: Any) -> None:
    made = trainer()
    made.forward_backward()
    before = looked(made, per_parameter=True)
    made.net.first.weight.main_grad.fill_(math.nan)
    for group in made.ddp.bucket_groups:
        before.look(group, False)
    assert by_name(made, before)["first.weight"] == pytest.approx(FIRST)
    before.clear()
    assert before.taken() == []
    before.look(made.ddp.bucket_groups[0], False)
    assert math.isnan(by_name(made, before)["first.weight"])


def test_a_forced_all_reduce_of_one_group_is_remembered_until_the_next_step(megatron: Any) -> None:
    made = trainer()
    made.forward_backward([ONES])
    before = BeforeReduction(per_parameter=True)
    before.look(made.ddp.bucket_groups[0], True)
    before.look(made.ddp.bucket_groups[0], False)
    assert before.forced_all_reduce
    before.clear()
    assert not before.forced_all_reduce


def test_before_a_look_there_are_no_norms(megatron: Any) -> None:
    assert AfterReduction([trainer().ddp]).norms is None


@pytest.mark.parametrize("use_distributed_optimizer", [False, True])
def test_the_buffer_is_one_piece_with_the_norm_of_all_gradients(megatron: Any, use_distributed_optimizer: bool) -> None:
    options = {"use_distributed_optimizer": use_distributed_optimizer}
    made = trainer(ddp=options, **options, bf16=True, optimizer="adam")
    made.forward_backward()
    after = AfterReduction([made.ddp])
    after.look()
    assert after.norms is not None
    assert (len(after.pieces), after.norms.dtype) == (1, torch.float32)
    assert after.norms.tolist() == [pytest.approx(math.sqrt(180.0))]


def test_each_look_sees_the_current_values(megatron: Any) -> None:
    made = trainer()
    made.forward_backward()
    after = AfterReduction([made.ddp])
    after.look()
    made.net.first.weight.main_grad[1, 1] = math.nan
    after.look()
    assert after.norms is not None
    assert math.isnan(after.norms.item())


def test_a_model_without_buffers_has_one_norm_per_parameter() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, bias=False))
    for value, param in enumerate(model.parameters(), start=3):
        param.grad = torch.full_like(param, value)
    after = AfterReduction([model])
    after.look()
    assert after.norms is not None
    assert after.norms.tolist() == [3.0, 4.0, 5.0]


def test_without_gradients_there_is_nothing_to_consume() -> None:
    after = AfterReduction([torch.nn.Linear(1, 1)])
    after.look()
    assert after.norms is None


@pytest.mark.parametrize("takes_dtype", [True, False])
def test_norms_are_summed_up_in_fp32(monkeypatch: pytest.MonkeyPatch, takes_dtype: bool) -> None:
    monkeypatch.setattr(gradient_norms, "TAKES_DTYPE", takes_dtype)
    # 4 times 40000 squared is beyond fp16, and so is their root: 80000.
    half = torch.full((2, 2), 40000.0, dtype=torch.float16)
    found = norms_of(
        [half, torch.empty(0, dtype=torch.float16), torch.tensor([3.0, math.nan]), torch.tensor([3.0, 4.0])]
    )
    assert found.dtype == torch.float32
    assert found[[0, 1, 3]].tolist() == [80000.0, 0.0, 5.0]
    assert math.isnan(found[2])


def test_the_torch_here_is_asked_what_it_takes() -> None:
    torch._foreach_norm([torch.ones(1)], 2, *([torch.float32] if gradient_norms.TAKES_DTYPE else []))
    assert gradient_norms.TAKES_DTYPE is ("dtype" in str(torch.ops.aten._foreach_norm.Scalar._schema))
