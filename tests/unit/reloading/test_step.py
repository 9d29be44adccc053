"""A captured step in a fresh model: the same gradients bit for bit; others where something is not restored."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import megatron_nanguard
from megatron_nanguard.errors import PostmortemError, ReplayError
from megatron_nanguard.guarded_run.guarded_optimizer import GuardedOptimizer
from megatron_nanguard.records.json.record_file import from_json, to_json
from megatron_nanguard.records.step.capture import CaptureFile, file_name
from megatron_nanguard.reloading.step import ReloadedStep
from tests.unit.capture.steps import capture, guard_optimizer, run_step
from tests.unit.one_rank import Trainer, trainer

numbers = itertools.count(100)
ADAM: dict[str, Any] = {"optimizer": "adam", "ddp": {"check_for_nan_in_grad": False}}
SHARDED: dict[str, Any] = {
    "optimizer": "adam",
    "bf16": True,
    "use_distributed_optimizer": True,
    "ddp": {"use_distributed_optimizer": True},
}
FP16: dict[str, Any] = {**ADAM, "fp16": True, "initial_loss_scale": 64.0, "loss_scale_window": 2, "min_loss_scale": 1.0}


def noisy(output: Tensor) -> Any:
    """A loss that depends on a random number."""
    return output.sum() * torch.rand(1), {}


def trained(**options: Any) -> tuple[Trainer, GuardedOptimizer]:
    """Two steps applied, so that weights, moments and scale have moved; a third one run and not applied."""
    made = trainer(**options)
    guarded = guard_optimizer(made, next(numbers))
    for _ in range(2):
        made.forward_backward()
        made.step()
    torch.rand(5)
    run_step(made, guarded, loss=noisy)
    return made, guarded


def run_again(step: ReloadedStep, fresh: Trainer) -> None:
    fresh.forward_backward((), loss=noisy, data_iterator=step.data_iterator, num_microbatches=step.num_microbatches)


@pytest.mark.parametrize("options", [ADAM, SHARDED, FP16, {"ddp": {"check_for_nan_in_grad": False}}])
def test_the_reloaded_step_has_the_same_gradients(megatron: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    made, guarded = trained(**options)
    incident = capture(guarded, "full", tmp_path)
    expected = [param.main_grad.clone() for param in made.net.parameters()]
    torch.manual_seed(0)

    fresh = trainer(**options)
    step = megatron_nanguard.reload_step(incident, [fresh.ddp], fresh.optimizer)
    run_again(step, fresh)

    comparison = step.compare()
    assert (comparison.exact, comparison.num_gradients, comparison.notes) == (True, 2, ())
    assert str(comparison) == "rank 0, step 1: 2 of 2 gradients are the same bit for bit"
    assert all(torch.equal(p.main_grad, e) for p, e in zip(fresh.net.parameters(), expected, strict=True))


@pytest.mark.parametrize("options", [ADAM, SHARDED, FP16])
def test_with_the_optimizer_the_run_goes_on_as_it_would_have(
    megatron: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    made, guarded = trained(**options)
    incident = capture(guarded, "full", tmp_path)
    made.step()

    fresh = trainer(**options)
    run_again(megatron_nanguard.reload_step(incident, [fresh.ddp], fresh.optimizer), fresh)
    fresh.step()

    assert fresh.weights() == made.weights()


def test_gradients_that_another_operator_changed_are_named(megatron: Any, tmp_path: Path) -> None:
    _, guarded = trained(**ADAM)
    incident = capture(guarded, "full", tmp_path)

    fresh = trainer(**ADAM)
    step = megatron_nanguard.reload_step(incident, fresh.ddp, fresh.optimizer)
    fresh.net.first.register_forward_hook(lambda module, inputs, output: output * 2)
    run_again(step, fresh)

    comparison = step.compare()
    assert comparison.differs == ("first.weight", "second.weight")
    assert str(comparison).splitlines()[:2] == [
        "rank 0, step 1: 0 of 2 gradients are the same bit for bit",
        "  differs  first.weight",
    ]


def test_without_the_random_states_it_is_another_step(megatron: Any, tmp_path: Path) -> None:
    _, guarded = trained(**ADAM)
    incident = capture(guarded, "full", tmp_path)

    fresh = trainer(**ADAM)
    step = megatron_nanguard.reload_step(incident, fresh.ddp, fresh.optimizer)
    torch.rand(1)
    run_again(step, fresh)

    assert not step.compare().exact


def test_buffers_are_those_at_the_entry_of_the_step(megatron: Any, tmp_path: Path) -> None:
    made = trainer(**ADAM)
    made.net.register_buffer("seen", torch.tensor([3.0]))
    guarded = guard_optimizer(made, next(numbers))
    run_step(made, guarded)
    made.net.seen.fill_(9.0)
    incident = capture(guarded, "full", tmp_path)

    fresh = trainer(**ADAM)
    fresh.net.register_buffer("seen", torch.tensor([0.0]))
    megatron_nanguard.reload_step(incident, fresh.ddp)

    assert fresh.net.seen.item() == 3.0


def test_without_weights_those_of_the_job_stay(megatron: Any, tmp_path: Path) -> None:
    made, guarded = trained(**ADAM)
    incident = capture(guarded, "step", tmp_path)

    fresh = trainer(**ADAM)
    weights = fresh.weights()
    step = megatron_nanguard.reload_step(incident, fresh.ddp, fresh.optimizer)
    assert fresh.weights() == weights
    run_again(step, fresh)
    assert step.compare().differs == ("first.weight", "second.weight")
    assert "holds no weights" in step.compare().notes[0]

    loaded = trainer(**ADAM)
    loaded.net.load_state_dict(made.net.state_dict())
    step = megatron_nanguard.reload_step(incident, loaded.ddp, loaded.optimizer)
    run_again(step, loaded)
    assert step.compare().exact


def test_more_micro_batches_than_were_saved_are_refused(megatron: Any, tmp_path: Path) -> None:
    _, guarded = trained(**ADAM)
    incident = capture(guarded, "full", tmp_path)
    fresh = trainer(**ADAM)
    step = megatron_nanguard.reload_step(incident, fresh.ddp)
    with pytest.raises(ReplayError, match="asks for more than the 2 micro-batches"):
        fresh.forward_backward((), data_iterator=step.data_iterator, num_microbatches=3)


def test_another_layout_is_refused_before_anything_is_changed(megatron: Any, tmp_path: Path) -> None:
    _, guarded = trained(**ADAM)
    incident = capture(guarded, "full", tmp_path)
    path = incident / file_name(0)
    record = from_json(CaptureFile, path.read_bytes())
    path.write_bytes(to_json(replace(record, sizes=replace(record.sizes, world=8, tp=2))))
    fresh = trainer(**ADAM)
    weights = fresh.weights()

    with pytest.raises(ReplayError, match=r"was tp0pp0dp0 of 8 ranks \(TP2 .* here it is tp0pp0dp0 of 1 ranks \(TP1"):
        megatron_nanguard.reload_step(incident, fresh.ddp)

    assert fresh.weights() == weights


def test_digests_alone_cannot_be_reloaded(megatron: Any, tmp_path: Path) -> None:
    _, guarded = trained(**ADAM)
    incident = capture(guarded, "ids", tmp_path)
    with pytest.raises(PostmortemError, match="holds digests alone; --nanguard-capture full saves the step"):
        megatron_nanguard.reload_step(incident, trainer().ddp)


def test_an_incident_without_a_capture_says_what_is_needed(megatron: Any, tmp_path: Path) -> None:
    (tmp_path / "incident.json").write_text("{}")
    with pytest.raises(PostmortemError, match="is not there: --nanguard-capture full"):
        megatron_nanguard.reload_step(tmp_path, trainer().ddp)
