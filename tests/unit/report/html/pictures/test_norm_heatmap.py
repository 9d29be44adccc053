"""The heat map of gradient norms."""

from __future__ import annotations

import math

from megatron_nanguard.report.html.pictures.norm_heatmap import NormCell, badness, heat_map, norm_matrix
from tests.unit.factories import SIZES
from tests.unit.report.html.factories import LARGE, opened_large_run, row


def test_finite_norms_are_on_a_log_scale_and_others_have_their_own_colours() -> None:
    norms = {"embedding": 0.01, "decoder.layers.0": math.nan, "decoder.layers.1": math.inf, "output_layer": 0.0}

    figure = heat_map([row(0, norm_by_layer=norms)], SIZES, None)

    assert figure is not None
    finite, special = figure.traces
    assert finite["z"] == [[-2.0, None, None, None]]
    assert special["z"] == [[None, 0, 1, 2]]
    assert special["text"] == [["", "NaN", "Inf", "0"]]
    assert [colour for _, colour in special["colorscale"]] == ["bad", "bad", "inf", "inf", "zero", "zero"]
    assert special["customdata"][0][1] == [0, "decoder.layers.0", "norm NaN"]
    assert figure.layout["xaxis"]["ticktext"] == ["embedding", "0", "1", "output_<br>layer"]
    assert "not finite in dp 0, tp 0." in figure.caption


def test_the_caption_of_a_map_without_bad_norms_says_so() -> None:
    figure = heat_map([row(2), row(6)], SIZES, None)
    assert figure is not None
    assert "every norm is finite." in figure.caption


def test_markup_in_a_layer_name_is_escaped_for_plotly() -> None:
    figure = heat_map([row(0, norm_by_layer={'<a href="http://x">': 1.0})], SIZES, None)
    assert figure is not None
    assert figure.layout["xaxis"]["ticktext"] == ['&lt;a href="http://x"&gt;']


def test_without_norms_there_is_no_map() -> None:
    assert heat_map([row(0, norm_by_layer={})], SIZES, None) is None


def test_a_note_says_that_norms_contain_the_loss_scale() -> None:
    told = {scale: heat_map([row(2)], SIZES, scale) for scale in (None, 1.0, 1024.0)}
    scaled = "All norms are multiplied by the loss scale 1024."
    assert [scaled in figure.caption for figure in told.values() if figure] == [False, False, True]


def test_a_row_is_one_pipeline_with_the_layers_of_all_its_stages() -> None:
    matrix = norm_matrix([row(rank) for rank in range(8)], SIZES)

    assert matrix.layers == ("embedding", "decoder.layers.0", "decoder.layers.2", "decoder.layers.3", "output_layer")
    assert [row.name for row in matrix.rows] == ["dp 0, tp 0", "dp 0, tp 1", "dp 1, tp 0", "dp 1, tp 1"]
    # replica 1 of tensor rank 1: rank 3 on stage 0 and rank 7 on stage 1, norms 0.5 + rank / 10
    assert matrix.rows[3].cells == (
        NormCell(3, 0.8),
        NormCell(3, 0.8),
        NormCell(7, 1.2),
        NormCell(7, 1.2),
        NormCell(7, 1.2),
    )
    bad = [cell.rank for cell in matrix.rows[1].cells if cell and math.isnan(cell.norm)]
    assert bad == [1, 1, 5, 5]
    assert (matrix.left_out, matrix.is_folded) == (0, False)


def test_a_layer_without_a_norm_leaves_a_gap() -> None:
    matrix = norm_matrix([row(0, norm_by_layer={"embedding": None, "decoder.layers.0": 1.0})], SIZES)
    assert matrix.rows[0].cells == (None, NormCell(0, 1.0))


def test_nan_outweighs_inf_and_inf_every_number() -> None:
    assert sorted([math.nan, 3.0, math.inf, 7.0], key=badness)[:3] == [3.0, 7.0, math.inf]


def test_a_large_run_keeps_its_bad_replicas_and_says_what_is_left_out() -> None:
    matrix = norm_matrix(opened_large_run().rows, LARGE)

    # 128 replicas, 48 lines: the bad one, then the first 47
    assert [row.name for row in matrix.rows] == [*(f"dp {replica}" for replica in range(47)), "dp 113"]
    assert (matrix.left_out, matrix.bad_left_out, matrix.is_folded) == (80, 0, True)
    assert len(matrix.layers) == 128


def test_without_norms_the_matrix_has_no_row() -> None:
    assert norm_matrix([row(0, norm_by_layer={})], SIZES).rows == ()
