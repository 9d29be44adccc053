"""Forward and backward steps run in a context by micro-batch and chunk; afterwards the originals are back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from megatron_nanguard.megatron_api.schedules import intercept_steps


@pytest.fixture
def schedules(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Megatron's module with steps that only pass objects on, in the signatures of 0.12."""
    from megatron.core.pipeline_parallel import schedules

    def forward_step(forward_step_func: Any, data_iterator: Any, model: Any, current_microbatch: Any = None) -> Any:
        return [forward_step_func()], 3

    def backward_step(input_tensor: Any, output_tensor: Any, grad: Any, model_type: Any, config: Any) -> Any:
        return input_tensor, output_tensor, grad, model_type, config

    monkeypatch.setattr(schedules, "forward_step", forward_step)
    monkeypatch.setattr(schedules, "backward_step", backward_step)
    return schedules


def test_a_backward_step_belongs_to_the_forward_step_that_made_its_output(schedules: Any) -> None:
    seen: list[Any] = []

    @contextmanager
    def around(*where: Any) -> Iterator[None]:
        seen.append(where)
        yield

    first, second, outputs = object(), object(), [object(), object(), object()]
    before = schedules.forward_step, schedules.backward_step
    with intercept_steps([first, second], around):  # type: ignore[list-item]
        schedules.forward_step(lambda: outputs[0], None, first, current_microbatch=0)
        schedules.forward_step(lambda: outputs[1], None, second, 4)
        assert schedules.backward_step(1, [outputs[1]], 2, 3, config=5) == (1, [outputs[1]], 2, 3, 5)
        schedules.backward_step(None, outputs[0], None, None, None)
        schedules.backward_step(None, outputs[2], None, None, None)
    assert seen == [(0, 0, False), (4, 1, False), (4, 1, True), (0, 0, True), (None, 0, True)]
    assert (schedules.forward_step, schedules.backward_step) == before
