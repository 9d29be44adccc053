"""States of ranks: their legend, and which rows of a picture are kept."""

from __future__ import annotations

from megatron_nanguard.postmortem.rank_table import RankState
from megatron_nanguard.report.blocks import Tone
from megatron_nanguard.report.rank_states import keep_worst, legend
from tests.unit.report.factories import demo_rows, row


def test_the_legend_counts_the_states_that_occur() -> None:
    assert legend(demo_rows()) == {
        RankState.ORIGIN: "origin (1 rank)",
        RankState.BAD_BEFORE: "also bad before the reduction (3 ranks)",
        RankState.INFECTED: "bad after it only (4 ranks)",
    }
    assert legend([row(0, RankState.BAD_BEFORE)]) == {RankState.BAD_BEFORE: "bad before the reduction (1 rank)"}
    assert legend([]) == {}


def test_the_worst_rows_are_kept_in_their_order() -> None:
    rows = {"a": [Tone.GOOD], "b": [Tone.GOOD, Tone.WORST], "c": [Tone.UNKNOWN], "d": [Tone.SPREAD], "e": [Tone.SPREAD]}

    assert keep_worst(list(rows), 3, rows.__getitem__) == ["b", "d", "e"]
    assert keep_worst(list(rows), 9, rows.__getitem__) == list("abcde")
    assert keep_worst([], 3, rows.__getitem__) == []
