"""One row of the exchange, and what all ranks of layout A, TP2 PP2 DP2, conclude from the same rows."""

from __future__ import annotations

from collections.abc import Container

import pytest

from megatron_nanguard.incident.rank_evidence import Signs
from megatron_nanguard.incident.rank_summary import ExchangeOutcome, RankSummary, conclude
from megatron_nanguard.records.coordinates import Coordinates
from megatron_nanguard.records.postmortem import Kind, RankSets
from tests.unit.factories import PLACES, SIZES

PLACE = Coordinates(rank=0, tp=1, cp=2, ep=3, dp=4, pp=5, expert_tp=6, expert_dp=7)
SIGNS = ("bad_before", "bad_after", "bad_loss", "suspicious_before", "suspicious_after")
FLAGS = (*SIGNS, "own_fault", "can_replay")


def row_of(place: Coordinates, flags: Container[str]) -> RankSummary:
    """The row of a rank that raises these flags."""
    raised = {flag: flag in flags for flag in FLAGS}
    return RankSummary(place, Signs(**{flag: raised.pop(flag) for flag in SIGNS}), **raised)


@pytest.mark.parametrize("number", range(len(FLAGS)))
def test_a_row_has_the_place_then_a_column_per_flag_and_comes_back_as_it_went(number: int) -> None:
    row = row_of(PLACE, [FLAGS[number]])
    columns = (0, 1, 2, 3, 4, 5, 6, 7, *(int(column == number) for column in range(len(FLAGS))))
    assert row.to_ints() == columns
    assert {type(value) for value in row.to_ints()} == {int}
    assert RankSummary.from_ints(list(columns)) == row


@pytest.mark.parametrize("row", [range(14), range(16)])
def test_a_row_of_another_length_is_refused(row: range) -> None:
    with pytest.raises(TypeError):
        RankSummary.from_ints(row)


ALL = set(PLACES)


def concluded(**ranks_by_flag: set[int]) -> ExchangeOutcome:
    """The outcome when these ranks raise these flags."""
    return conclude([summary(rank, ranks_by_flag) for rank in PLACES], SIZES)


def summary(rank: int, ranks_by_flag: dict[str, set[int]]) -> RankSummary:
    tp, dp, pp = PLACES[rank]
    flags = [flag for flag, ranks in ranks_by_flag.items() if rank in ranks]
    return row_of(Coordinates(rank, tp, 0, 0, dp, pp, expert_tp=tp, expert_dp=dp), flags)


def words(outcome: ExchangeOutcome) -> tuple[list[str], list[str]]:
    return [group.words for group in outcome.groups], [group.words for group in outcome.infected_groups]


def test_a_replica_that_is_bad_before_infects_the_other() -> None:
    outcome = concluded(bad_before={0, 1, 4, 5}, bad_after=ALL, suspicious_before={0, 1, 4, 5}, suspicious_after=ALL)
    assert outcome.kind is Kind.GRADIENT_BEFORE_REDUCTION
    assert outcome.ranks == RankSets((0, 1, 4, 5), (2, 3, 6, 7), ())
    assert [group.ranks for group in outcome.groups] == [(0, 1, 4, 5)]
    assert [group.indices for group in outcome.groups] == [{"dp": (0,)}]
    assert [group.indices for group in outcome.infected_groups] == [{"dp": (1,)}]
    assert outcome.notes == ()


def test_a_tensor_parallel_index_leaves_the_rest_clean() -> None:
    outcome = concluded(bad_before={1, 3, 5, 7}, bad_after={1, 3, 5, 7})
    assert outcome.ranks == RankSets((1, 3, 5, 7), (), (0, 2, 4, 6))
    assert words(outcome) == (["TP index 1 everywhere"], [])


def test_what_is_bad_only_after_the_reduction_has_no_rank_before_it() -> None:
    outcome = concluded(bad_after={6}, suspicious_after={6})
    assert outcome.kind is Kind.GRADIENT_AFTER_REDUCTION
    assert outcome.ranks == RankSets((), (6,), (0, 1, 2, 3, 4, 5, 7))
    assert outcome.groups == ()
    assert [group.ranks for group in outcome.infected_groups] == [(6,)]


def test_a_bad_loss_alone_is_a_loss_of_the_ranks_that_computed_it() -> None:
    outcome = concluded(bad_loss={4, 5})
    assert outcome.kind is Kind.LOSS
    assert outcome.ranks == RankSets((4, 5), (), (0, 1, 2, 3, 6, 7))


def test_a_rank_with_a_bad_loss_counts_as_bad_before_beside_bad_gradients() -> None:
    outcome = concluded(bad_loss={4, 5}, bad_before={0, 1}, bad_after=ALL)
    assert outcome.kind is Kind.GRADIENT_BEFORE_REDUCTION
    assert outcome.ranks == RankSets((0, 1, 4, 5), (2, 3, 6, 7), ())


def test_suspicion_counts_where_no_element_is_bad_anywhere() -> None:
    outcome = concluded(suspicious_before={2}, suspicious_after={0, 2})
    assert outcome.kind is Kind.NORM_OVERFLOW
    assert outcome.ranks == RankSets((2,), (0,), (1, 3, 4, 5, 6, 7))


def test_suspicion_beside_a_bad_element_is_silent() -> None:
    outcome = concluded(bad_after={3}, suspicious_before={0}, suspicious_after={0, 3})
    assert outcome.kind is Kind.GRADIENT_AFTER_REDUCTION
    assert outcome.ranks == RankSets((), (3,), (0, 1, 2, 4, 5, 6, 7))


def test_a_dead_step_has_no_bad_rank() -> None:
    outcome = concluded()
    assert outcome.kind is Kind.DEAD_STEP
    assert outcome.ranks == RankSets((), (), tuple(range(8)))
    assert words(outcome) == ([], [])


def test_ranks_whose_own_guard_failed_are_named() -> None:
    outcome = concluded(bad_before={0}, bad_after={0}, own_fault={3, 6})
    assert outcome.notes == ("the guard itself failed on ranks 3, 6; their evidence is incomplete",)
    assert outcome.ranks.clean == (1, 2, 3, 4, 5, 6, 7)


def test_all_can_replay_only_if_each_rank_can_and_none_has_failed() -> None:
    assert concluded(bad_before={0}, can_replay=ALL).cannot_replay == ()
    assert concluded(bad_before={0}, can_replay=ALL - {7}).cannot_replay == (7,)
    assert concluded(bad_before={0}, can_replay=ALL, own_fault={3}).cannot_replay == (3,)
