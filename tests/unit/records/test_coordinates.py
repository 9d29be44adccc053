"""Names of places in the layout."""

from __future__ import annotations

from dataclasses import replace

from megatron_nanguard.records.coordinates import Coordinates
from tests.unit.factories import SIZES, place


def test_label_names_the_three_common_axes() -> None:
    assert place(6).label(SIZES) == "tp0pp1dp1"


def test_label_names_context_and_expert_ranks_only_where_they_exist() -> None:
    here = Coordinates(rank=9, tp=1, cp=1, ep=3, dp=2, pp=0, expert_tp=0, expert_dp=0)

    assert here.label(replace(SIZES, cp=2)) == "tp1pp0dp2cp1"
    assert here.label(replace(SIZES, ep=4)) == "tp1pp0dp2ep3"
    assert here.label(replace(SIZES, cp=2, ep=4)) == "tp1pp0dp2cp1ep3"
