"""Gradients just before their reduction."""

from __future__ import annotations

from typing import Any

from megatron_nanguard.patch_points.start_grad_sync import POINT
from tests.unit.one_rank import ONES, trainer
from tests.unit.patch_points.calls import applied


def test_a_pass_shows_each_bucket_group_once_with_its_gradients(megatron: Any) -> None:
    made = trainer()
    seen: list[tuple[Any, bool, list[float]]] = []

    def before_reduction(group: Any, force_all_reduce: bool) -> None:
        seen.append((group, force_all_reduce, group.buckets[0].grad_data.tolist()))

    with applied(POINT, before_reduction):
        made.forward_backward([ONES, ONES])
    (group, forced, grads), *rest = seen
    assert rest == []
    assert [group] == made.ddp.bucket_groups
    assert not forced
    # two micro-batches, the schedule divides the loss by their number; the buffer begins with the last layer
    assert sorted(grads) == [0.0] * (len(grads) - 6) + [3.0, 5.0, 5.0, 6.0, 6.0, 7.0]


def test_a_forced_all_reduce_is_handed_on(megatron: Any) -> None:
    made = trainer()
    forced: list[bool] = []
    with applied(POINT, lambda group, force_all_reduce: forced.append(force_all_reduce)):
        made.forward_backward(force_all_reduce=True)
    assert forced == [True]
