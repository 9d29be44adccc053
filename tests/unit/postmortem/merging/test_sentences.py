"""The sentence that stands first."""

from __future__ import annotations

import pytest

from megatron_nanguard.postmortem.merging.sentences import summarize
from megatron_nanguard.records.coordinates import RankGroup
from megatron_nanguard.records.postmortem import Kind, RankSets

GROUP = RankGroup("tp", {"tp": (3,)}, "TP index 3 everywhere", ())


@pytest.mark.parametrize(
    ("kind", "sets", "sentence"),
    [
        (
            Kind.GRADIENT_BEFORE_REDUCTION,
            RankSets((3,), (), (0, 1, 2)),
            "Step 7: gradients of rank 3, that is TP index 3 everywhere, were not finite before the "
            "data-parallel reduction.",
        ),
        (
            Kind.GRADIENT_AFTER_REDUCTION,
            RankSets((), (3,), (0, 1, 2)),
            "Step 7: every local gradient was finite, and what the optimizer would have consumed on rank 3, "
            "that is TP index 3 everywhere, was not: it went bad in or after the reduction.",
        ),
        (
            Kind.LOSS,
            RankSets((3,), (), (0, 1, 2)),
            "Step 7: the loss on rank 3, that is TP index 3 everywhere, was not finite, while every gradient was.",
        ),
        (
            Kind.NORM_OVERFLOW,
            RankSets((3,), (), (0, 1, 2)),
            "Step 7: all gradients of rank 3, that is TP index 3 everywhere, were finite, and too large for the "
            "sum of their squares.",
        ),
        (
            Kind.DEAD_STEP,
            RankSets((), (), (0, 1, 2, 3)),
            "Step 7: the step was applied though its gradient norm was not finite; it showed only after the vote.",
        ),
    ],
)
def test_each_kind_has_its_sentence(kind: Kind, sets: RankSets, sentence: str) -> None:
    assert summarize(7, kind, sets, [GROUP]) == sentence


def test_without_groups_there_are_no_brackets() -> None:
    assert summarize(7, Kind.LOSS, RankSets((3,), (), ()), []) == (
        "Step 7: the loss on rank 3 was not finite, while every gradient was."
    )
