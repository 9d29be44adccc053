"""How two runs of a step compare, in words."""

from __future__ import annotations

import math
from dataclasses import replace

from megatron_nanguard.reloading.comparison import Comparison
from tests.unit.factories import capture_file

RECORD = capture_file(
    gradients={"a": "01", "b": "02", "c": "03"},
    norms={"a": math.nan, "b": 1.0, "c": 2.0},
)


def test_the_same_digests_are_the_same_gradients_and_a_nan_norm_equals_itself() -> None:
    found = Comparison.of(RECORD, dict(RECORD.gradients), dict(RECORD.norms))
    assert (found.exact, found.differs, found.differs_before) == (True, (), frozenset())
    assert str(found) == "rank 5, step 3: 3 of 3 gradients are the same bit for bit"


def test_what_differs_is_named_and_whether_it_did_before_the_reduction() -> None:
    found = Comparison.of(RECORD, {"a": "01", "b": "ff", "c": "fe"}, {"a": math.nan, "b": 1.5, "c": 2.0})
    assert not found.exact
    assert str(found).splitlines() == [
        "rank 5, step 3: 1 of 3 gradients are the same bit for bit",
        "  differs  b, already before the reduction",
        "  differs  c",
    ]


def test_gradients_that_one_of_the_two_lacks_differ() -> None:
    assert Comparison.of(RECORD, {"a": "01", "c": "03", "d": "04"}, {}).differs == ("b", "d")


def test_long_lists_are_cut_and_notes_follow() -> None:
    many = {f"p{number}": "01" for number in range(30)}
    record = replace(RECORD, gradients=many, level="step", left_out=("x: too odd",))
    lines = str(Comparison.of(record, {}, {})).splitlines()
    assert len(lines) == 1 + 24 + 1 + 2
    assert lines[-3:] == [
        "  and 6 more",
        "  note: not in the capture: x: too odd",
        "  note: the capture holds no weights (--nanguard-capture step): they are this job's own",
    ]
