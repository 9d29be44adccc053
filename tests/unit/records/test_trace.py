from __future__ import annotations

from typing import get_args

from megatron_nanguard.records.trace import PHASE_WORDS, Phase, place_words


def test_a_place_is_a_phase_and_its_micro_batch() -> None:
    assert place_words("backward", 2) == "backward of micro-batch 2"
    assert place_words("finalize", None) == "finalize"
    assert place_words("a later phase", None) == "a later phase"


def test_every_phase_has_words() -> None:
    assert set(get_args(Phase)) == set(PHASE_WORDS)
