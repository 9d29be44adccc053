"""The order of layers, their names on an axis, and the ticks of a log scale."""

from __future__ import annotations

import pytest

from megatron_nanguard.report.html.pictures.axes import layers_in_order, log_axis, log_ticks, short_names
from tests.unit.report.html.factories import row


def test_layers_of_all_stages_are_in_forward_order() -> None:
    names = ("decoder.layers.10", "decoder.layers.9", "output_layer", "embedding")
    rows = [row(rank, norm_by_layer={name: 1.0}) for rank, name in enumerate(names)]

    assert layers_in_order(rows) == ("embedding", "decoder.layers.9", "decoder.layers.10", "output_layer")


def test_layers_of_one_stack_are_numbered_and_those_of_two_keep_the_stack_name() -> None:
    assert short_names(["embedding", "decoder.layers.3", "decoder.final_layernorm"]) == (
        "embedding",
        "3",
        "final_layernorm",
    )
    assert short_names(["encoder.layers.3", "decoder.layers.3"]) == ("encoder 3", "decoder 3")
    assert short_names([]) == ()


@pytest.mark.parametrize(
    ("lowest", "highest", "expected"),
    [
        (0.04, 3.0, [0.1, 1.0]),
        (0.4, 30.0, [1.0, 10.0]),
        (0.3, 8.0, [0.5, 1.0, 2.0, 5.0]),
        (610.0, 640.0, [610.0, 640.0]),
        (2.5, 2.5, [2.5]),
        (1e-9, 1e9, [1e-9, 1e-5, 1e-1, 1e3, 1e7]),
    ],
)
def test_ticks_lie_between_the_ends(lowest: float, highest: float, expected: list[float]) -> None:
    assert log_ticks(lowest, highest) == pytest.approx(expected)


def test_a_tick_has_four_digits() -> None:
    assert log_axis([610.25, 640.0]) == {"tickvals": [610.25, 640.0], "ticktext": ["610.2", "640"]}
    assert log_axis([1e-9, 1e-8])["ticktext"][0] == "1e-09"


def test_nothing_drawn_has_no_ticks() -> None:
    assert log_axis([]) == {}
