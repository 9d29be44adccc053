"""Flags from norms, losses and scales: which suspicion raises which."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_nanguard.megatron_api import optimizers
from megatron_nanguard.megatron_api.optimizers import ScalerTrackers
from megatron_nanguard.sentinel.vote_flags import FP32_MAX, Flag, FlagInputs, RaisedScale, fault_flags, flag_tensor
from tests.unit.one_rank import trainer

CPU = torch.device("cpu")
NAN, INF = math.nan, math.inf


def raised(num_ranks: int = 8, **seen: Any) -> set[str]:
    """Names of the flags that are on."""
    flags = flag_tensor(FlagInputs(**seen), num_ranks, CPU)
    assert (flags.dtype, flags.shape) == (torch.int32, (len(Flag),))
    return {flag.name.lower() for flag, value in zip(Flag, flags.tolist(), strict=True) if value}


def norms(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_the_order_of_the_flags_is_fixed() -> None:
    names = ("LOCAL", "REDUCED", "LOSS", "OWN_FAULT", "DEAD_STEP", "DYNAMIC_SCALE", "MINIMAL_SCALE", "RAISED_SCALE")
    assert [(flag.name, int(flag)) for flag in Flag] == [(name, number) for number, name in enumerate(names)]


def test_nothing_seen_raises_nothing() -> None:
    assert raised() == set()


@pytest.mark.parametrize("bad", [NAN, INF])
def test_one_bad_norm_of_many_raises_its_flag_alone(bad: float) -> None:
    assert raised(before=[norms(1.0, 2.0), norms(3.0, bad)], after=norms(1.0)) == {"local"}
    assert raised(before=[norms(1.0, 2.0)], after=norms(1.0, bad, 0.0)) == {"reduced"}


@pytest.mark.parametrize("num_ranks", [1, 8])
def test_a_sum_of_squares_that_overflows_over_all_ranks_is_suspicious(num_ranks: int) -> None:
    edge = math.sqrt(FP32_MAX / num_ranks)
    assert raised(num_ranks, before=[norms(edge * 0.999)], after=norms(edge * 0.999)) == set()
    assert raised(num_ranks, before=[norms(edge * 1.001)], after=norms(edge * 1.001)) == {"local", "reduced"}


def test_norms_that_are_harmless_alone_are_added_up_over_buckets() -> None:
    part = math.sqrt(FP32_MAX / 8) * 0.8
    assert raised(8, before=[norms(part)]) == set()
    assert raised(8, before=[norms(part), norms(part)]) == {"local"}


def test_a_square_that_overflows_fp32_itself_is_suspicious() -> None:
    assert raised(1, before=[norms(1e30)]) == {"local"}


def test_empty_norms_are_silent() -> None:
    assert raised(before=[norms()], after=norms()) == set()


def test_a_bad_loss_raises_its_flag() -> None:
    assert raised(loss=torch.tensor(True)) == {"loss"}
    assert raised(loss=torch.tensor(False)) == set()


@pytest.mark.parametrize("last", [NAN, INF, -INF])
def test_a_norm_of_the_step_before_that_was_not_finite_is_a_dead_step(last: float) -> None:
    for held in (last, torch.tensor(last), torch.tensor([last])):
        assert raised(last_norms=[1.0, held, torch.tensor(2.0)]) == {"dead_step"}


def test_finite_norms_of_the_step_before_are_silent() -> None:
    assert raised(last_norms=[1.0, torch.tensor([2.0]), torch.tensor(1e38)]) == set()


def test_the_state_of_the_scaler_is_part_of_the_flags() -> None:
    assert raised(dynamic_scale=True, minimal_scale=torch.tensor([False])) == {"dynamic_scale"}
    assert raised(dynamic_scale=True, minimal_scale=torch.tensor([True])) == {"dynamic_scale", "minimal_scale"}
    assert raised(dynamic_scale=True, raised_scale=True) == {"dynamic_scale", "raised_scale"}


def test_a_faulty_rank_says_nothing_but_that() -> None:
    assert fault_flags(CPU).tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


class ReadCounter(TorchDispatchMode):
    """Counts what would make the host wait: values read, and copies to or from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.lift_fresh.default):
            self.waits.append(str(func))
        return func(*args, **(kwargs or {}))


def test_no_value_is_read_and_no_host_tensor_made() -> None:
    seen = FlagInputs(
        before=[norms(1.0, NAN)],
        after=norms(INF),
        loss=torch.tensor(True),
        last_norms=[NAN, torch.tensor(1.0)],
        dynamic_scale=True,
        minimal_scale=torch.tensor([True]),
    )
    with ReadCounter() as counter:
        flag_tensor(seen, 8, CPU)
    assert counter.waits == []
    with ReadCounter() as counter:
        torch.tensor(1.0).item()
    assert len(counter.waits) == 2


def followed(megatron: Any, window: int, hysteresis: int, steps: str) -> str:
    """Megatron's own scaler over some steps: ``.`` applied, ``x`` skipped. ``r`` where the scale counts as raised.

    The answer belongs to the moment of the vote, before the step is counted.
    """
    made = trainer(
        fp16=True,
        optimizer="adam",
        initial_loss_scale=8.0,
        min_loss_scale=0.01,
        loss_scale_window=window,
        hysteresis=hysteresis,
    )
    (scaler,), raised, seen = optimizers.scalers(made.optimizer), RaisedScale(), ""
    for step in steps:
        seen += "r" if raised.look(optimizers.scaler_trackers(made.optimizer)) else "-"
        scaler.update(step == "x")
    return seen


@pytest.mark.parametrize(
    ("window", "hysteresis", "steps", "seen"),
    [
        # Nothing was applied at the very first scale either.
        (3, 1, "....", "r--r"),
        # Raised by the second step; the fourth is the first at a scale that went down again.
        (2, 1, "..xx.", "r-r--"),
        # Of two overflows at the raised scale the first does not bring it down.
        (2, 2, "..xxx", "r-rr-"),
        # An overflow that is swallowed by the hysteresis is no raise, nor is what comes after it.
        (3, 2, ".xx.x", "r----"),
        # Raised after every step.
        (1, 1, "..x.x", "rrr-r"),
    ],
)
def test_a_scale_is_raised_until_a_step_is_applied_at_it(
    megatron: Any, window: int, hysteresis: int, steps: str, seen: str
) -> None:
    assert followed(megatron, window, hysteresis, steps) == seen


def test_one_raised_scale_of_several_is_enough() -> None:
    proven, raised = ScalerTrackers(5, 2, 2), ScalerTrackers(0, 2, 2)
    assert RaisedScale().look([proven, raised])
    assert not RaisedScale().look([proven, proven])


def test_of_scalers_in_place_of_others_nothing_went_before() -> None:
    proven, raised, swallowed = ScalerTrackers(5, 2, 2), ScalerTrackers(0, 2, 2), ScalerTrackers(0, 1, 2)
    followed = RaisedScale()
    assert followed.look([raised])
    assert not followed.look([swallowed, proven])
    assert followed.look([raised, proven])
    assert followed.look([swallowed, proven])
    assert not followed.look([])


def test_a_scaler_that_counts_in_a_way_of_its_own_is_not_raised(megatron: Any) -> None:
    made = trainer(fp16=True, optimizer="adam", initial_loss_scale=8.0, min_loss_scale=0.01, loss_scale_window=3)
    (scaler,) = optimizers.scalers(made.optimizer)
    assert RaisedScale().look(optimizers.scaler_trackers(made.optimizer))
    scaler.state_dict = lambda: {"scale": scaler.scale}
    assert not RaisedScale().look(optimizers.scaler_trackers(made.optimizer))
    del scaler.state_dict, scaler.hysteresis
    assert not RaisedScale().look(optimizers.scaler_trackers(made.optimizer))


def test_without_a_dynamic_scale_there_is_none() -> None:
    assert not RaisedScale().look([])
