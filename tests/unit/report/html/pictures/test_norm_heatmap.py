"""The heat map of gradient norms."""

from __future__ import annotations

import math

from megatron_nanguard.report.html.pictures.norm_heatmap import heat_map
from tests.unit.factories import SIZES
from tests.unit.report.html.factories import row


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
