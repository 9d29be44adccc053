"""What the page shows about a chosen rank."""

from __future__ import annotations

from megatron_nanguard.report.html.rank_details import DETAILED_RANKS, rank_details, rank_places
from tests.unit.report.html.factories import opened_demo, opened_large_run


def test_the_rank_of_the_origin_shows_the_origin() -> None:
    assert rank_details(opened_demo())[5] == [
        ("state", "origin"),
        ("host", "node1"),
        ("device", "Test CPU"),
        ("norm before reduction", "NaN"),
        ("losses", "4.5, 4.625, 4.75, 4.875"),
        ("began here", "log in decoder.layers.3.mlp, backward of micro-batch 2: NaN"),
    ]


def test_every_rank_has_its_place() -> None:
    assert rank_places(opened_demo().rows)[4] == (4, "tp0pp1dp0", "bad_before")


def test_in_a_large_run_the_worst_ranks_have_details() -> None:
    details = rank_details(opened_large_run())

    assert len(details) == DETAILED_RANKS
    # 40 ranks were bad before; the first of the infected follow
    assert {5000, 5007, 904, 0, 215} <= set(details)
    assert 216 not in details
