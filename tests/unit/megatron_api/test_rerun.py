"""The rerun state machine neither validates during a replay nor remembers it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megatron_nanguard.megatron_api import rerun


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
    with rerun.standing_still():
        validate(machine)
    with pytest.raises(AssertionError, match="should not be called outside"):
        validate(machine)
    assert "validate_result" not in vars(machine)


def test_what_somebody_else_put_on_the_machine_comes_back(machine: Any) -> None:
    machine.validate_result = mark = lambda **_: None
    with rerun.standing_still():
        assert machine.validate_result is not mark
    assert machine.validate_result is mark


def test_its_state_comes_back_by_content(machine: Any) -> None:
    machine.validation_counts["here"] = 1
    put_back = rerun.keep()
    for _ in range(2):
        machine.validation_counts["here"] += 1
        machine.rerun_requested = True
        machine.invented = 1
        put_back()
        assert (machine.validation_counts["here"], machine.rerun_requested) == (1, False)
        assert not hasattr(machine, "invented")
