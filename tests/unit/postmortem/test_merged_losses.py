"""Losses of many ranks, by micro-batch."""

from __future__ import annotations

import math

from megatron_nanguard.postmortem.merged_losses import LossMerger
from megatron_nanguard.records.incident import MicrobatchLosses
from megatron_nanguard.records.postmortem import Microbatch


def test_ranks_without_a_loss_add_nothing() -> None:
    merger = LossMerger()
    merger.add(0, [Microbatch(0, None, 64)])

    assert merger.merged() == ()


def test_a_loss_that_is_not_finite_is_told_apart_from_the_range() -> None:
    merger = LossMerger()
    merger.add(7, [Microbatch(1, math.nan, 64), Microbatch(0, 3.0, 64)])
    merger.add(6, [Microbatch(0, 2.0, 64), Microbatch(1, 5.0, 64)])
    merger.add(5, [Microbatch(1, math.inf, 64)])

    assert merger.merged() == (
        MicrobatchLosses(0, 2, 2.0, 3.0, ()),
        MicrobatchLosses(1, 3, 5.0, 5.0, (5, 7)),
    )


def test_no_finite_loss_leaves_no_range() -> None:
    merger = LossMerger()
    merger.add(4, [Microbatch(0, -math.inf, 64)])

    assert merger.merged() == (MicrobatchLosses(0, 1, None, None, (4,)),)
