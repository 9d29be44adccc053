"""One row of the exchange."""

from __future__ import annotations

from dataclasses import fields

import pytest

from megatron_nanguard.incident.rank_summary import RankSummary
from megatron_nanguard.records.coordinates import Coordinates

NAMES = [field.name for field in fields(RankSummary)]
REPORT = RankSummary(**{name: number for number, name in enumerate(NAMES)})


def test_a_row_comes_back_as_it_went() -> None:
    assert REPORT.to_ints() == tuple(range(len(NAMES)))
    assert RankSummary.from_ints(list(REPORT.to_ints())) == REPORT


def test_a_row_has_these_columns() -> None:
    assert [
        *("rank", "tp", "cp", "ep", "dp", "pp", "expert_tp", "expert_dp"),
        *("bad_before", "bad_after", "bad_loss", "suspicious_before", "suspicious_after", "dead_step", "own_fault"),
        "can_replay",
    ] == NAMES


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(AssertionError):
        RankSummary.from_ints(REPORT.to_ints()[:-1])


def test_the_place_is_read_off_the_row() -> None:
    assert REPORT.coordinates == Coordinates(rank=0, tp=1, cp=2, ep=3, dp=4, pp=5, expert_tp=6, expert_dp=7)
