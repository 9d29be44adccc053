"""Checks of the host's rerun machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from megatron_nanguard.patch_points.validate_result import POINT
from tests.unit.patch_points.calls import applied


@pytest.fixture
def machine(megatron: Any) -> Iterator[Any]:
    """The rerun machine in the mode that validates and raises."""
    from megatron.core import rerun_state_machine

    rerun_state_machine.destroy_rerun_state_machine()
    rerun_state_machine.initialize_rerun_state_machine(mode=rerun_state_machine.RerunMode.DISABLED)
    yield rerun_state_machine.get_rerun_state_machine()
    rerun_state_machine.destroy_rerun_state_machine()


def validate(machine: Any, *, by_name: bool, rejection_func: Any = torch.isnan) -> None:
    nan = torch.tensor(torch.nan)
    if by_name:
        machine.validate_result(result=nan, rejection_func=rejection_func, message="loss", fatal=True)
    else:
        machine.validate_result(nan, rejection_func, "loss", fatal=True)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_check_that_is_taken_over_raises_no_more(machine: Any, by_name: bool) -> None:
    with pytest.raises(RuntimeError, match="loss"):
        validate(machine, by_name=by_name)
    with applied(POINT, lambda rejection_func: rejection_func is torch.isnan):
        validate(machine, by_name=by_name)


def test_every_other_check_goes_on(machine: Any) -> None:
    def is_spiky(loss: Any) -> bool:
        return True

    with (
        applied(POINT, lambda rejection_func: rejection_func is torch.isnan),
        pytest.raises(RuntimeError, match="loss"),
    ):
        validate(machine, by_name=False, rejection_func=is_spiky)
