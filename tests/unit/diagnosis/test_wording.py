"""Channels and places in words."""

from __future__ import annotations

import pytest

from megatron_nanguard.diagnosis.wording import name_channel, name_place, name_ranks
from megatron_nanguard.records.trace import TracedPlace
from tests.unit.diagnosis.factories import LAYOUT_A, group, p2p


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        (group(4, 5), "tensor-parallel group of pp1 dp0, ranks 4, 5"),
        (group(0, 2), "data-parallel group of tp0 pp0, ranks 0, 2"),
        (group(1, 5), "pipeline-parallel group of tp1 dp0, ranks 1, 5"),
        (group(0, 1, 2, 3), "ranks 0, 1, 2, 3"),
        (group(0, 9), "ranks 0, 9"),
        (group(3), "rank 3"),
        (p2p(4, 0), "rank 4 to rank 0"),
    ],
)
def test_a_channel_is_named_by_the_axis_on_which_its_members_differ(channel: tuple[str, ...], words: str) -> None:
    assert name_channel(channel, LAYOUT_A) == words


def test_ranks_are_cut_after_sixteen() -> None:
    assert name_ranks(()) == "no rank"
    assert name_ranks(range(20)) == "20 ranks (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ...)"


def test_a_place_outside_of_any_module_or_micro_batch() -> None:
    assert name_place(TracedPlace("finalize", None, 0, "")) == "finalize"
    assert name_place(TracedPlace("forward", 1, 0, "decoder")) == "forward of micro-batch 1, decoder"
