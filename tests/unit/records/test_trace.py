"""A trace: its phases in words, and its messages."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from megatron_nanguard.errors import PostmortemError
from megatron_nanguard.records.phrase import Phrase
from megatron_nanguard.records.trace import Message, Pattern, Phase, pattern_of, phase_words, place_words
from tests.unit.diagnosis.factories import group, message, trace


def test_a_place_is_a_phase_and_its_micro_batch() -> None:
    assert place_words("backward", 2) == "backward of micro-batch 2"
    assert place_words("finalize", None) == "finalize"
    assert place_words("a later phase", None) == "a later phase"


def test_every_phase_has_words() -> None:
    assert all(isinstance(phase_words(phase), Phrase) for phase in get_args(Phase))
    assert not isinstance(phase_words("a later phase"), Phrase)


def test_a_message_of_a_channel_that_is_not_listed_is_refused() -> None:
    with pytest.raises(PostmortemError, match=r"^a message has channel 1, 1 are listed$"):
        replace(trace(0, arrivals=(message(9, group(0, 2)),)), arrivals=(Message(9, "recv_", 1, 0, "finite", "nan"),))


@pytest.mark.parametrize(("nan", "inf", "pattern"), [(0, 0, "finite"), (3, 0, "nan"), (0, 1, "inf"), (2, 5, "nan+inf")])
def test_counts_become_a_word(nan: int, inf: int, pattern: Pattern) -> None:
    assert pattern_of(nan, inf) == pattern
