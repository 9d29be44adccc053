"""The parallel groups exist."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_nanguard.patch_points.initialize_model_parallel import POINT
from tests.unit.patch_points.calls import applied


@pytest.mark.parametrize(
    ("given", "told"), [({}, (0, None)), ({"rank_offset": 0, "local_world_size": 1}, (0, 1))]
)  # fmt: skip
def test_the_handler_is_called_when_the_groups_exist(
    megatron: Any, given: dict[str, int], told: tuple[int, Any]
) -> None:
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    calls: list[tuple[Any, ...]] = []
    with applied(POINT, lambda *seen: calls.append((*seen, parallel_state.model_parallel_is_initialized()))):
        parallel_state.initialize_model_parallel(1, 1, **given)
    assert calls == [(*told, True)]
