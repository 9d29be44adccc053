"""Ticks of a logarithmic scale."""

from __future__ import annotations

import pytest

from megatron_nanguard.report.html.pictures.ticks import log_ticks, tick_name


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
    assert [tick_name(tick) for tick in (1000.0, 0.04387721, 1e-9)] == ["1000", "0.04388", "1e-09"]
