"""One row of the exchange."""

from __future__ import annotations

from dataclasses import fields

import pytest

from megatron_nanguard.incident.report import RankReport
from megatron_nanguard.records.coordinates import Coordinates

REPORT = RankReport(5, 1, 2, 3, 4, 6, 7, 8, 1, 0, 1, 0, 1, 0, 1, 12)


def test_a_row_comes_back_as_it_went() -> None:
    assert REPORT.to_ints() == (5, 1, 2, 3, 4, 6, 7, 8, 1, 0, 1, 0, 1, 0, 1, 12)
    assert RankReport.from_ints(list(REPORT.to_ints())) == REPORT


def test_a_row_has_one_integer_per_field_on_every_rank() -> None:
    assert len(REPORT.to_ints()) == len(fields(RankReport)) == 16


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(AssertionError):
        RankReport.from_ints(REPORT.to_ints()[:-1])


def test_the_place_is_read_off_the_row() -> None:
    assert REPORT.coordinates == Coordinates(rank=5, tp=1, cp=2, ep=3, dp=4, pp=6, expert_tp=7, expert_dp=8)
