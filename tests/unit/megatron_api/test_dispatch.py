"""Whether a reduction is on its way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from megatron_nanguard.megatron_api.dispatch import is_dispatched
from tests.unit.one_rank import trainer


def test_a_reduction_is_on_its_way_from_its_start_to_its_end(megatron: Any) -> None:
    made = trainer(ddp={"overlap_grad_reduce": True})
    made.forward_backward()
    (group,) = made.ddp.bucket_groups
    assert not is_dispatched(group)
    made.ddp.zero_grad_buffer()
    group.start_grad_sync()
    assert is_dispatched(group)
    group.finish_grad_sync()
    assert not is_dispatched(group)


@pytest.mark.parametrize("handle", [None, object()])
def test_before_0_10_the_handle_has_another_name(handle: object) -> None:
    assert is_dispatched(SimpleNamespace(communication_handle=handle)) is (handle is not None)
