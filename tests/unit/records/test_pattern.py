"""Four words for what was seen in a tensor."""

from __future__ import annotations

import pytest

from megatron_nanguard.records.pattern import Pattern, pattern_of


@pytest.mark.parametrize(("nan", "inf", "pattern"), [(0, 0, "finite"), (3, 0, "nan"), (0, 1, "inf"), (2, 5, "nan+inf")])
def test_counts_become_a_word(nan: int, inf: int, pattern: Pattern) -> None:
    assert pattern_of(nan, inf) == pattern
