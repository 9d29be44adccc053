"""Release lines and the shape of a target."""

from __future__ import annotations

import pytest

from megatron_nanguard.patching.point import Target, line_of


@pytest.mark.parametrize(
    ("version", "line"),
    [("0.8.0", (0, 8)), ("0.12.3", (0, 12)), ("0.17.1rc2", (0, 17)), ("0.20rc0", (0, 20)), ("1.0", (1, 0))],
)
def test_the_release_line_is_major_and_minor(version: str, line: tuple[int, int]) -> None:
    assert line_of(version) == line


def test_a_target_knows_its_module_and_attribute() -> None:
    target = Target("package.module:Class.method")
    assert (target.module, target.attribute) == ("package.module", "Class.method")


@pytest.mark.parametrize(
    ("release", "is_covered"),
    [((0, 9), False), ((0, 10), True), ((0, 12), True), ((0, 16), True), ((0, 17), False), ((0, 99), False)],
)
def test_a_target_covers_its_first_to_its_last_release(release: tuple[int, int], is_covered: bool) -> None:
    assert Target("m:f", since="0.10", until="0.16").covers(release) is is_covered


@pytest.mark.parametrize("release", [(0, 7), (0, 20), (1, 0)])
def test_a_release_outside_of_the_table_counts_as_the_nearest(release: tuple[int, int]) -> None:
    assert Target("m:f").covers(release)
    assert Target("m:f", since="0.9", until="0.18").covers(release) is False
