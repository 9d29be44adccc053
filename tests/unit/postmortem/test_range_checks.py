"""Numbers that no run has are refused before anything is sized by them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.postmortem.range_checks import check_incident, check_place, check_sizes
from megatron_nanguard.records.causes import RankedCause
from megatron_nanguard.records.postmortem import RankSets
from tests.unit.factories import SETS, SIZES, incident, place


def test_records_as_a_run_writes_them_pass() -> None:
    check_incident(incident(ranks=SETS), "x")
    for rank in range(8):
        check_place(place(rank), SIZES, "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 0}, "x: key sizes.tp is 0, expected 1 to 1048576"),
        ({"world": -8}, "x: key sizes.world is -8, expected 1 to 1048576"),
        ({"world": 1 << 40}, "x: key sizes.world is 1099511627776, expected 1 to 1048576"),
        ({"tp": 4096, "dp": 4096}, "x: tp, cp, dp and pp make 33554432 ranks, expected at most 1048576"),
    ],
)
def test_a_layout_of_another_world_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(PostmortemError) as caught:
        check_sizes(replace(SIZES, **changes), "x")

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 8}, "x: key coordinates.rank is 8, expected 0 to 7"),
        ({"dp": 2}, "x: key coordinates.dp is 2, expected 0 to 1"),
        ({"pp": -1}, "x: key coordinates.pp is -1, expected 0 to 1"),
    ],
)
def test_a_place_outside_of_its_layout_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(PostmortemError) as caught:
        check_place(replace(place(5), **changes), SIZES, "x")

    assert str(caught.value) == message


@pytest.mark.parametrize("confidence", [-0.1, 1.5, math.nan])
def test_a_confidence_outside_of_0_to_1_is_refused(confidence: float) -> None:
    causes = (RankedCause("data", 0.5, (), (), (), ""), RankedCause("numerics", confidence, (), (), (), ""))

    with pytest.raises(PostmortemError, match=rf"^x: key causes\[1\]\.confidence is {confidence}, expected 0 to 1$"):
        check_incident(incident(causes=causes), "x")


def test_a_rank_outside_of_the_run_is_refused() -> None:
    with pytest.raises(PostmortemError, match=r"^x: key ranks\.clean holds 8, expected 0 to 7$"):
        check_incident(incident(ranks=RankSets((0,), (), (7, 8))), "x")
