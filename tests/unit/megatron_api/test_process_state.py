"""Sums for the log, timers and the rerun machine come back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from megatron_nanguard.megatron_api import process_state


@pytest.fixture
def logging(megatron: Any) -> Iterator[Any]:
    """Megatron's own module of MoE metrics, before any forward pass."""
    from megatron.core.transformer.moe import moe_logging

    moe_logging.destroy_moe_metrics_tracker()
    yield moe_logging
    moe_logging.destroy_moe_metrics_tracker()


def add(logging: Any, value: float) -> None:
    """One micro-batch of the second of two layers."""
    logging.get_moe_metrics_tracker().record("load_balancing_loss", torch.tensor(value), layer_number=2, num_layers=2)


def values(logging: Any) -> list[float]:
    metrics = logging.get_moe_metrics_tracker().metrics
    found: list[float] = metrics["load_balancing_loss"].values.tolist() if metrics else []
    return found


def test_sums_come_back_as_often_as_wanted(logging: Any) -> None:
    add(logging, 1.0)
    put_back = process_state.keep_accumulators()
    for _ in range(2):
        add(logging, 2.0)
        assert values(logging) == [0.0, 3.0]
        put_back()
        assert values(logging) == [0.0, 1.0]


def test_a_tracker_that_the_forward_pass_made_is_emptied(logging: Any) -> None:
    put_back = process_state.keep_accumulators()
    add(logging, 2.0)
    put_back()
    assert values(logging) == []


def test_losses_of_multi_token_prediction_come_back(megatron: Any) -> None:
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    MTPLossLoggingHelper.tracker = {"values": torch.tensor([1.0])}
    put_back = process_state.keep_accumulators()
    MTPLossLoggingHelper.tracker["values"] += 1.0
    put_back()
    assert MTPLossLoggingHelper.tracker["values"].tolist() == [1.0]
    MTPLossLoggingHelper.tracker = {}


def test_tensors_are_found_inside(logging: Any) -> None:
    add(logging, 1.0)
    found = [t.tolist() for t in process_state.accumulated_tensors()]
    assert [0.0, 1.0] in found


@pytest.fixture
def machine(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Between two steps."""
    from megatron.core import rerun_state_machine

    monkeypatch.setattr(rerun_state_machine, "_GLOBAL_RERUN_STATE_MACHINE", None)
    rerun_state_machine.initialize_rerun_state_machine(mode=rerun_state_machine.RerunMode.VALIDATE_RESULTS)
    return rerun_state_machine.get_rerun_state_machine()


def validate(machine: Any) -> None:
    machine.validate_result(result=torch.tensor(1.0), rejection_func=torch.isnan, message="loss")


def test_between_two_steps_validating_is_an_error_but_not_in_a_replay(machine: Any) -> None:
    with process_state.rerun_machine_off():
        validate(machine)
    with pytest.raises(AssertionError, match="should not be called outside"):
        validate(machine)
    assert "validate_result" not in vars(machine)


def test_a_validate_result_that_was_replaced_before_is_restored(machine: Any) -> None:
    machine.validate_result = mark = lambda **_: None
    with process_state.rerun_machine_off():
        assert machine.validate_result is not mark
    assert machine.validate_result is mark


def test_its_state_comes_back_by_content(machine: Any) -> None:
    machine.validation_counts["here"] = 1
    put_back = process_state.keep_rerun_machine()
    for _ in range(2):
        machine.validation_counts["here"] += 1
        machine.rerun_requested = True
        machine.invented = 1
        put_back()
        assert (machine.validation_counts["here"], machine.rerun_requested) == (1, False)
        assert not hasattr(machine, "invented")


@pytest.fixture
def clock(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Megatron's own timers, where its training loop has them."""
    from megatron.core.timers import Timers
    from megatron.training import global_vars

    made = Timers(log_level=2, log_option="minmax")
    monkeypatch.setattr(global_vars, "_GLOBAL_TIMERS", made)
    return made


def test_a_pass_that_is_run_again_is_not_counted(clock: Any) -> None:
    clock("forward-backward", log_level=0).start()
    clock("forward-backward").stop()
    clock("optimizer", log_level=0).start()
    counted = clock._timers["forward-backward"]._elapsed
    put_back = process_state.keep_timers()
    clock("forward-backward").start()
    clock("forward-backward").stop()
    clock("new", log_level=1).start()
    put_back()
    assert clock._timers["forward-backward"]._elapsed == counted
    assert list(clock._timers) == ["forward-backward", "optimizer"]
    clock("optimizer").stop()


def test_a_trainer_without_timers_has_nothing_to_keep(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.training import global_vars

    monkeypatch.setattr(global_vars, "_GLOBAL_TIMERS", None)
    process_state.keep_timers()()
