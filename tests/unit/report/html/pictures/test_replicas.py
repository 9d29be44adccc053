"""Replicas side by side: norms of one place in the model, and losses."""

from __future__ import annotations

import math
from dataclasses import replace

from megatron_nanguard.postmortem.rank_table import RankState
from megatron_nanguard.records.postmortem import Microbatch
from megatron_nanguard.report.html.pictures.replicas import compare_losses, compare_norms
from tests.unit.factories import SIZES
from tests.unit.report.html.factories import LARGE, opened_large_run, row

ROWS = [row(rank) for rank in range(8)]


def test_the_origin_is_compared_with_the_same_place_on_other_replicas() -> None:
    figure = compare_norms(ROWS, SIZES, None)

    assert figure is not None
    assert "gradients of pp1 tp1" in figure.caption
    bad, crosses, good = figure.traces
    assert (bad["name"], good["name"]) == ("dp 0 (rank 5)", "dp 1 (rank 7)")
    # layers 2 and 3 are NaN on rank 5, the output layer is not: 0.5 + 5 / 10
    assert bad["y"] == [None, None, 1.0]
    assert (crosses["y"], crosses["yaxis"]) == ([1, 1, None], "y2")
    assert good["y"] == [1.2, 1.2, 1.2]
    assert (bad["line"]["color"], good["line"]["color"]) == ("bad", "line-1")


def test_a_single_replica_gives_no_chart() -> None:
    assert compare_norms([row(5), row(4)], SIZES, None) is None
    assert compare_norms([], SIZES, None) is None


def test_many_finite_replicas_become_the_range_they_span() -> None:
    figure = compare_norms(opened_large_run().rows, LARGE, None)

    assert figure is not None
    low, high, *bad = figure.traces
    assert high["name"] == "127 others, all finite"
    # norms are 1 + rank % 7 of ranks 8 * (dp + 512): all of 1 to 7 occur
    assert (low["y"], high["y"]) == ([1.0] * 8, [7.0] * 8)
    assert [trace["name"] for trace in bad] == ["dp 113 (rank 5000)"] * 2


def test_of_many_bad_replicas_the_first_are_drawn_and_the_others_counted() -> None:
    rows = [replace(one, state=RankState.BAD_BEFORE) for one in opened_large_run().rows if one.coordinates.pp == 4]

    figure = compare_norms(rows, LARGE, None)

    assert figure is not None
    # rank 4096 is accused first; dp 113 is not finite and not among the first 16
    assert figure.traces[1]["name"] == "112 others, 1 not finite"
    assert len({trace["legendgroup"] for trace in figure.traces[2:]}) == 16


def test_the_loss_of_a_replica_is_the_worst_of_its_ranks() -> None:
    losses = {4: 4.5, 5: math.nan, 6: 4.25, 7: 4.25}
    rows = [row(rank, microbatches=(Microbatch(0, 4.5, 64), Microbatch(1, loss, 64))) for rank, loss in losses.items()]

    figure = compare_losses(rows)

    assert figure is not None
    assert figure.caption.endswith("Not finite: dp 0 in micro-batch 1.")
    assert [trace["y"] for trace in figure.traces] == [[4.5, None], [None, 1], [4.5, 4.25]]
    assert "yaxis2" in figure.layout


def test_finite_values_are_never_red_and_the_line_of_a_bad_replica_is_thick() -> None:
    rows = [row(rank, microbatches=(Microbatch(0, 4.5, 64),)) for rank in (5, 7)]

    figure = compare_losses(rows)

    assert figure is not None
    looks = [(trace["name"], trace["line"]["color"], trace["line"]["width"]) for trace in figure.traces]
    assert looks == [("dp 0", "line-0", 3.5), ("dp 1", "line-1", 1.5)]


def test_finite_losses_have_no_panel_for_nan() -> None:
    figure = compare_losses([row(6, state=RankState.CLEAN)])
    assert figure is not None
    assert figure.caption.endswith("Every loss is finite.")
    assert "yaxis2" not in figure.layout


def test_without_a_loss_there_is_no_chart() -> None:
    assert compare_losses([row(0)]) is None
