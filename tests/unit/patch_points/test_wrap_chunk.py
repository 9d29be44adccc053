"""A chunk was wrapped for data parallelism."""

from __future__ import annotations

from typing import Any

from megatron_nanguard.patch_points.wrap_chunk import POINT
from tests.unit.one_rank import trainer
from tests.unit.patch_points.calls import applied


def test_the_handler_gets_a_chunk_whose_buffers_are_laid_out(megatron: Any) -> None:
    seen: list[tuple[Any, int]] = []
    with applied(POINT, lambda ddp: seen.append((ddp, len(ddp.buffers)))):
        made = trainer()
    assert seen == [(made.ddp, 1)]
