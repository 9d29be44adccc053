"""The summary of an incident, and the reasons why the step was not run again."""

from __future__ import annotations

import pytest

from megatron_nanguard.postmortem.merging.sentences import ReplayMerger, summarize
from megatron_nanguard.records.coordinates import RankGroup
from megatron_nanguard.records.postmortem import Kind, RankSets
from megatron_nanguard.records.step.replay import ReplaySummary

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


def test_without_groups_the_summary_has_no_group_words() -> None:
    assert summarize(7, Kind.LOSS, RankSets((3,), (), ()), []) == (
        "Step 7: the loss on rank 3 was not finite, while every gradient was."
    )


DICT = "the data iterator is a dict, which is no iterator"
OTHERS = ReplaySummary(why_not="rank 5 cannot run the step again, see the post-mortem there")
DONE = ReplaySummary(True, "", True, ("plain: 0.10 s",))


def obstacle(why: str) -> ReplaySummary:
    return ReplaySummary(why_not=why, obstacle=why)


def merged(*summaries: ReplaySummary) -> ReplaySummary:
    merger = ReplayMerger()
    for rank, summary in enumerate(summaries):
        merger.add(rank, summary)
    return merger.merged()


def test_a_rank_that_could_not_replay_is_named_with_its_reason() -> None:
    assert merged(OTHERS, obstacle(DICT), OTHERS) == ReplaySummary(why_not=f"rank 1 cannot run the step again: {DICT}")


def test_ranks_with_the_same_reason_are_named_together_and_further_reasons_after_them() -> None:
    assert merged(obstacle(DICT), OTHERS, obstacle("no room"), obstacle(DICT)).why_not == (
        f"ranks 0, 3 cannot run the step again: {DICT}; rank 2 cannot run the step again: no room"
    )


def test_a_reason_of_all_ranks_names_no_rank() -> None:
    assert merged(obstacle("switched off"), obstacle("switched off")) == ReplaySummary(why_not="switched off")


def test_many_reasons_are_cut_and_counted() -> None:
    whole = merged(OTHERS, *(obstacle(f"reason {number}") for number in range(6))).why_not

    assert whole.endswith("; rank 4 cannot run the step again: reason 3; and 2 more reasons")


def test_a_reason_without_an_obstacle_is_kept_as_it_is() -> None:
    no_operator = ReplaySummary(why_not="every element is finite: there is no operator to look for")

    assert merged(no_operator, no_operator) == no_operator


def test_the_summary_of_a_finished_replay_counts_for_all_ranks() -> None:
    assert merged(ReplaySummary(), DONE, ReplaySummary()) == DONE
    assert merged() == ReplaySummary()
