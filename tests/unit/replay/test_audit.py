"""Everything that was bad before the step is named with its kind, and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from megatron_nanguard.megatron_api.optimizer_state import optimizer_parameters
from megatron_nanguard.parameters.parameter_map import ParameterMap
from megatron_nanguard.records.coordinates import ParallelSizes
from megatron_nanguard.records.step.replay import AuditFinding
from megatron_nanguard.replay.audit import audit
from tests.unit.one_rank import ONES, Trainer, trainer

NAN, INF = math.nan, math.inf
ALONE = ParallelSizes(world=1, tp=1, cp=1, ep=1, dp=1, pp=1, expert_tp=1, expert_dp=1)


def stepped(**options: Any) -> Trainer:
    """A trainer with moments: Adam after one step."""
    sharded = {"use_distributed_optimizer": options.pop("distributed", False)}
    made = trainer(ddp=sharded, optimizer="adam", **sharded, **options)
    made.forward_backward((ONES,))
    made.step()
    return made


def found(made: Trainer, batch: Any = ()) -> list[AuditFinding]:
    return list(audit([made.ddp], ParameterMap([made.ddp], ALONE), made.optimizer, batch, rank=5))


def state_of(made: Trainer, which: int) -> dict[str, torch.Tensor]:
    """Moments of the first or the second weight."""
    (leaf,) = made.optimizer.chained_optimizers
    shape = [4, 2][which]
    (state,) = [
        leaf.optimizer.state[main]
        for group in leaf.optimizer.param_groups
        for main in group["params"]
        if main.numel() == shape
    ]
    return dict(state)


def main_of(made: Trainer, numel: int) -> torch.Tensor:
    (leaf,) = made.optimizer.chained_optimizers
    (main,) = [p for group in leaf.optimizer.param_groups for p in group["params"] if p.numel() == numel]
    return main.detach()


KINDS = [{}, {"bf16": True}, {"bf16": True, "distributed": True}, {"distributed": True}]


@pytest.mark.parametrize("options", KINDS)
def test_the_distributed_optimizer_is_there_where_it_is_asked_for(megatron: Any, options: dict[str, Any]) -> None:
    (leaf,) = stepped(**options).optimizer.chained_optimizers
    assert (type(leaf).__name__ == "DistributedOptimizer") is options.get("distributed", False)


@pytest.mark.parametrize("options", KINDS)
def test_a_healthy_state_has_no_finding(megatron: Any, options: dict[str, Any]) -> None:
    batch = (({"mask": torch.tensor([0.0, -INF]), "tokens": torch.tensor([1, 2])},),)
    assert found(stepped(**options), batch) == []


@pytest.mark.parametrize("options", KINDS)
def test_bad_moments_are_named_by_their_parameter(megatron: Any, options: dict[str, Any]) -> None:
    made = stepped(**options)
    state_of(made, 0)["exp_avg"].view(-1)[1] = INF
    state_of(made, 1)["exp_avg_sq"].view(-1)[0] = -1.0
    # The distributed optimizer keeps them in the order of the buckets, the last one first.
    assert sorted(found(made), key=lambda finding: finding.name) == [
        AuditFinding("exp_avg", "first.weight", "inf", 5),
        AuditFinding("exp_avg_sq", "second.weight", "negative", 5),
    ]


def test_a_negative_first_moment_is_healthy(megatron: Any) -> None:
    made = stepped()
    state_of(made, 0)["exp_avg"].fill_(-1.0)
    assert found(made) == []


def test_a_weight_without_a_main_parameter(megatron: Any) -> None:
    made = stepped()
    made.net.first.weight.data[0, 0] = NAN
    made.net.first.weight.data[1, 0] = INF
    assert found(made) == [AuditFinding("weight", "first.weight", "nan+inf", 5)]


@pytest.mark.parametrize("distributed", [False, True])
def test_a_bad_weight_beside_a_good_main_parameter_is_a_finding_of_its_own(megatron: Any, distributed: bool) -> None:
    made = stepped(bf16=True, distributed=distributed)
    made.net.second.weight.data[0, 1] = NAN
    main_of(made, 2)[:] = torch.tensor([2.0, -4.5]).view_as(main_of(made, 2))
    note = "its main parameter is finite, largest magnitude 4.5"
    assert found(made) == [AuditFinding("weight_only", "second.weight", "nan", 5, note)]


def test_a_weight_that_was_copied_from_a_bad_main_parameter(megatron: Any) -> None:
    made = stepped(bf16=True)
    main_of(made, 2).fill_(NAN)
    made.net.second.weight.data.fill_(NAN)
    assert found(made) == [
        AuditFinding("weight", "second.weight", "nan", 5, "its main parameter is bad too"),
        AuditFinding("main_param", "second.weight", "nan", 5),
    ]


def test_a_shared_weight_that_is_bad_where_another_rank_owns_it(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stepped(bf16=True)
    names = ParameterMap([made.ddp], ALONE)
    made.net.second.weight.data[0, 1] = NAN
    entry = names.entry(made.net.second.weight)
    names.entries = tuple(one if one is not entry else replace(entry, shards=((0, 1),)) for one in names.entries)
    findings = audit([made.ddp], names, made.optimizer, (), rank=5)
    assert findings == (AuditFinding("weight", "second.weight", "nan", 5, "where it is bad, other ranks own it"),)


def test_buffers_and_data_may_hold_a_meant_infinity_but_no_other(megatron: Any) -> None:
    made = stepped()
    made.net.first.register_buffer("mask", torch.tensor([0.0, -INF]))
    made.net.first.register_buffer("seen", torch.tensor([INF]))
    batch = (
        ({"tokens": torch.tensor([1])}, {"images": [torch.tensor([0.0]), torch.tensor([NAN])]}),
        (torch.tensor([-INF]), torch.tensor([INF])),
    )
    assert found(made, batch) == [
        AuditFinding("buffer", "first.seen", "inf", 5),
        AuditFinding("batch", "micro-batch 1, images.1", "nan", 5),
        AuditFinding("batch", "micro-batch 1", "inf", 5),
    ]


def test_without_an_optimizer_the_model_is_audited_alone(megatron: Any) -> None:
    made = stepped(bf16=True)
    made.net.first.weight.data[0, 0] = NAN
    findings = audit([made.ddp], ParameterMap([made.ddp], ALONE), None, (), rank=0)
    assert findings == (AuditFinding("weight", "first.weight", "nan", 0),)


def test_a_bad_weight_of_which_the_optimizer_keeps_nothing_here(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stepped(bf16=True)
    weight = made.net.second.weight
    weight.data[0, 1] = NAN
    kept = [one for one in optimizer_parameters(made.optimizer) if one.param is not weight]
    monkeypatch.setattr("megatron_nanguard.replay.audit.optimizer_parameters", lambda optimizer: kept)
    assert found(made) == [AuditFinding("weight", "second.weight", "nan", 5, "where it is bad, other ranks own it")]
